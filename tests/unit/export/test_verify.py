"""Verification by the exporter: what it compares, and detection of errors in single shapes and rows."""

import math
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.agreement import Agreement, compare, compare_utterance
from export.forms.onnx_form import ONNX
from export.modules.codec import CodecStep
from export.reference import AGES, Reference
from export.verify import (
    ALL_BATCHES,
    SOME_BATCHES,
    Outcome,
    StepFunction,
    Verification,
    affordable_batches,
    failures,
    worst,
)
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, max_history, split_frames
from scripts.synthetic.configs import CODEC_DECODER

LIMIT = Agreement(max_error=0.1, snr_db=30.0)
Answers = tuple[Tensor, Tensor]


class CheapStep(nn.Module):
    """A cheap step that is exact for any chunking: each of a frame's four samples adds the previous one."""

    config = CodecDecoderConfig.model_validate(CODEC_DECODER)
    state_size = 3

    def forward(self, codes: Tensor, state: Tensor, history: Tensor) -> Answers:
        valid = codes.clamp(0, self.config.codebook_size - 1).float()
        samples = valid.unflatten(2, (4, -1)).mean(3).flatten(1) / 2048
        before = torch.cat([state[:, :1] * (history > 0), samples[:, :-1]], dim=1)
        return samples + before, samples[:, -1:].repeat(1, self.state_size)


def verification(candidate: StepFunction, batches: tuple[int, ...] | None = ALL_BATCHES) -> Verification:
    return Verification(CheapStep(), candidate, batches)  # type: ignore[arg-type]


def failures_of(corrupt: Callable[[Tensor, Answers], Answers]) -> str:
    """The failures of a step whose outputs `corrupt` changes, depending on the codes."""
    step = CheapStep()
    return failures(list(verification(lambda codes, *rest: corrupt(codes, step(codes, *rest))).run()), LIMIT)


def test_compares_and_names_every_shape_in_random_order() -> None:
    seen = []

    def candidate(codes: Tensor, state: Tensor, history: Tensor) -> Answers:
        seen.append(tuple(codes.shape[:2]))
        answers: Answers = step(codes, state, history)
        return answers

    step, every = CheapStep(), {(rows, frames) for rows in range(1, MAX_BATCH + 1) for frames in CHUNK_FRAMES}
    verified = verification(candidate)
    outcomes = list(verified.run())
    assert set(seen) == every
    assert {f"{rows} x {frames}" for rows, frames in every} <= {outcome.name for outcome in outcomes}
    assert seen[: len(every)] != sorted(seen[: len(every)])
    assert len(outcomes) == len(verified)
    assert worst(outcomes) == Agreement()
    assert failures(outcomes, LIMIT) == ""
    assert str(verified) == "320 shapes (batches 1 to 64 x 1, 2, 4, 8, 16 frames) and an utterance of 10 s"


def test_batches_mix_histories_with_malformed_and_equal_rows() -> None:
    step, given = CheapStep(), []

    def candidate(codes: Tensor, state: Tensor, history: Tensor) -> Answers:
        given.append((codes, state, history))
        answers: Answers = step(codes, state, history)
        return answers

    verified = verification(candidate)
    batches = [given[-1] for _ in islice(verified.run(), len(verified.cases))]
    ages = {int(age) for _, _, history in batches for age in history}
    assert ages == {min(age, max_history(step.config)) for age in AGES}
    assert all((history == 0).eq((state == 0).all(1, keepdim=True)).all() for _, state, history in batches)
    for codes, *_ in batches:
        malformed = ((codes < 0) | (codes >= step.config.codebook_size)).any(dim=(1, 2))
        distinct = len(codes.flatten(1).unique(dim=0))
        assert malformed.any() or distinct == 1
        assert not malformed.all() or distinct == 1
        assert distinct < len(codes) or len(codes) < 4
    uniform = {tuple(codes.shape[:2]) for codes, *_ in batches if len(codes) > 1 == len(codes.flatten(1).unique(dim=0))}
    assert uniform == {(rows, frames) for rows in (2, 8, MAX_BATCH) for frames in CHUNK_FRAMES}


@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (37, 8), (MAX_BATCH, 16)])
def test_finds_a_single_wrong_shape(shape: tuple[int, int]) -> None:
    def corrupt(codes: Tensor, answers: Answers) -> Answers:
        return (answers[0] * 1.4, answers[1]) if codes.shape[:2] == shape else answers

    message = failures_of(corrupt)
    assert f"{shape[0]} x {shape[1]}: 8.0 dB" in message
    assert {part.split(":")[0].split(" of ")[0] for part in message.split(", ")} <= {
        f"{shape[0]} x {shape[1]}",
        "utterance",
    }


@pytest.mark.parametrize("row", [0, 40, -1])
def test_finds_a_single_wrong_row(row: int) -> None:
    def corrupt(codes: Tensor, answers: Answers) -> Answers:
        if codes.shape[:2] == (63, 2):
            answers[1][row] *= 1.4
        return answers

    assert failures_of(corrupt) == "63 x 2: 8.0 dB"


def test_finds_equal_rows_that_differ_although_each_is_within_the_limit() -> None:
    def corrupt(codes: Tensor, answers: Answers) -> Answers:
        waveform, state = answers
        if codes.shape[:2] == (8, 4) and len(codes.flatten(1).unique(dim=0)) == 1:
            waveform = waveform * torch.linspace(0.975, 1.025, 8)[:, None].to(waveform.device)
        return waveform, state

    assert failures_of(corrupt) == "8 x 4 of one row: 25.8 dB"


def test_outputs_of_another_shape_or_with_nan_never_agree() -> None:
    right = torch.ones(2, 3)
    assert compare(right, right[:, :2]).snr_db == -math.inf
    nan = Agreement(math.nan, math.nan)
    assert not nan.within(LIMIT)
    for wrong in (math.nan, math.inf):
        assert compare(right, torch.tensor([[1, 1, wrong], [1, 1, 1]])) == Agreement(math.inf, -math.inf)


def test_agreement_is_that_of_the_worst_row() -> None:
    right = torch.tensor([[1e3, 1e3], [1e-3, 1e-3]])
    agreement = compare(right, right + torch.tensor([[0.0], [1e-4]]))
    assert agreement.snr_db == pytest.approx(20, abs=0.1)


def test_measures_drift_within_an_utterance() -> None:
    sound = torch.randn(1, 4000, generator=torch.Generator().manual_seed(0))
    error = torch.cat([torch.full((1, 2000), 1e-3), torch.full((1, 2000), 1e-2)], dim=1)
    agreement = compare_utterance(sound, sound + error)
    assert agreement.drift_db == pytest.approx(20, abs=1)
    assert not agreement.within(Agreement(max_error=1, snr_db=0))
    assert compare_utterance(sound, sound) == Agreement()


def test_failures_are_listed_worst_first_and_counted() -> None:
    outcomes = [Outcome(f"{rows} x 1", Agreement(snr_db=float(rows))) for rows in range(1, 40)]
    message = failures(outcomes, LIMIT)
    assert message.startswith("1 x 1: 1.0 dB, 2 x 1: 2.0 dB, ")
    assert message.endswith("10 x 1: 10.0 dB and 19 more")


def test_verifies_some_batches_if_all_take_too_long() -> None:
    step = CheapStep()

    def slow(*inputs: Tensor) -> Answers:
        time.sleep(0.05)
        waveform, state = step(*inputs)
        return waveform.cpu(), state

    assert verification(slow, None).batches == SOME_BATCHES
    assert affordable_batches(1e-4) == ALL_BATCHES
    assert affordable_batches(1e-3) == SOME_BATCHES
    assert str(verification(step, SOME_BATCHES)).startswith("35 shapes (batches 1, 2, 3, 7, 8, 33, 64 x 1, 2, 4, 8, 16")


def test_finds_a_step_that_ignores_its_history(tiny_checkpoint: Path) -> None:
    step = CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint)))
    exact = Reference(step)
    outcomes = list(Verification(step, lambda codes, state, history: exact(codes, state, 0 * history), (2,)).run())
    assert "2 x 1" in failures(outcomes, ONNX.limit)


@pytest.mark.parametrize("frames", [1, 3, 16, 23, 375])
@pytest.mark.parametrize("longest", CHUNK_FRAMES)
def test_splits_any_number_of_frames_into_verified_lengths(frames: int, longest: int) -> None:
    spans = list(split_frames(frames, longest))
    assert {stop - start for start, stop in spans} <= {length for length in CHUNK_FRAMES if length <= longest}
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == frames
