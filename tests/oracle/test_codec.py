"""The codec step in chunks of any length equals the reference, which decodes all frames at once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from export.forms.onnx_form import ONNX
from export.modules.codec import CodecStep
from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.contract import MAX_FRAMES, max_history
from tests.oracle.reference import reference_codec

FRAMES = 160  # more than twice the attention window
TOLERANCE = 1e-4
StepFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def step(tiny_checkpoint: Path) -> CodecStep:
    return CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint)))


@pytest.fixture(scope="module")
def codes() -> Tensor:
    return torch.randint(0, 2048, (3, FRAMES, 16), dtype=torch.int32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: Path, codes: Tensor) -> Tensor:
    """The waveform of `codes` [3, 1920 * FRAMES] from the reference."""
    with torch.inference_mode():
        waveform: Tensor = reference_codec(tiny_checkpoint).decoder(codes.long().transpose(1, 2))
    return waveform[:, 0]


def cold(step: CodecStep, rows: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, step.state_size), torch.zeros(rows, 1, dtype=torch.int32)


@torch.inference_mode()
def decode(step: StepFunction, codes: Tensor, chunks: list[int], state: Tensor, history: Tensor, window: int) -> Tensor:
    """The waveform of `codes`, decoded in chunks of the given lengths until either ends."""
    waveforms, start = [], 0
    for frames in chunks:
        chunk = codes[:, start : start + frames]
        if not chunk.shape[1]:
            break
        waveform, state = step(chunk, state, history)
        waveforms.append(waveform.clamp(-1, 1))
        start += chunk.shape[1]
        history = (history + chunk.shape[1]).clamp(max=window)
    return torch.cat(waveforms, dim=1)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected[:, : actual.shape[1]], atol=TOLERANCE, rtol=0)


@settings(max_examples=20)
@given(chunks=st.lists(st.integers(1, MAX_FRAMES), min_size=5, max_size=60))
def test_random_chunks_equal_the_reference(step: CodecStep, codes: Tensor, expected: Tensor, chunks: list[int]) -> None:
    assert_equal(decode(step, codes[:1], chunks, *cold(step, 1), max_history(step.config)), expected[:1])


@pytest.mark.parametrize("frames", [1, 7, MAX_FRAMES])
def test_batched_utterances_equal_the_reference(step: CodecStep, codes: Tensor, expected: Tensor, frames: int) -> None:
    actual = decode(step, codes, [frames] * FRAMES, *cold(step, 3), max_history(step.config))
    assert actual.shape == expected.shape
    assert_equal(actual, expected)


def test_rows_of_different_age_in_one_batch_equal_the_reference(
    step: CodecStep, codes: Tensor, expected: Tensor
) -> None:
    ages, window = [0, 23, 90], max_history(step.config)
    state, history = cold(step, 3)
    with torch.inference_mode():
        for row, age in enumerate(ages):
            for t in range(age):
                _, state[row : row + 1] = step(codes[row, None, t, None], state[row, None], history[row, None])
                history[row] = min(t + 1, window)
    rest = torch.stack([codes[row, age : age + 60] for row, age in enumerate(ages)])
    actual = decode(step, rest, [1, 3, 24, 32], state, history, window)
    parts = [expected[row, age * SAMPLES_PER_FRAME :][: actual.shape[1]] for row, age in enumerate(ages)]
    assert_equal(actual, torch.stack(parts))


def test_history_masks_past_frames(step: CodecStep, codes: Tensor, expected: Tensor) -> None:
    """Validates the tests above: without history the mask hides the past and the waveform differs."""
    state, history = cold(step, 3)
    with torch.inference_mode():
        _, state = step(codes[:, :32], state, history)
        warm, _ = step(codes[:, 32:40], state, history + 32)
        without_history, _ = step(codes[:, 32:40], state, history)
    start = 32 * SAMPLES_PER_FRAME
    assert_equal(warm, expected[:, start:])
    assert (without_history - expected[:, start : start + without_history.shape[1]]).abs().max() > 10 * TOLERANCE


@pytest.mark.parametrize("bad_code", [-1, 2048, 2**31 - 1, -(2**31)])
def test_malformed_row_does_not_change_other_rows(step: CodecStep, codes: Tensor, bad_code: int) -> None:
    chunk, (state, history) = codes[:, :9], cold(step, 3)
    malformed = chunk.clone()
    malformed[1, 4:, 3:] = bad_code
    with torch.inference_mode():
        clean, clean_state = step(chunk, state, history)
        waveform, next_state = step(malformed, state, torch.tensor([[0], [-5], [0]], dtype=torch.int32))
    others = [0, 2]
    assert torch.equal(waveform[others], clean[others])
    assert torch.equal(next_state[others], clean_state[others])
    assert waveform.isfinite().all()


def test_onnx_file_equals_the_reference(tiny_code2wav: Path, step: CodecStep, codes: Tensor, expected: Tensor) -> None:
    onnx_step = ONNX.load(tiny_code2wav / "code2wav" / "1" / ONNX.filename)
    chunks = [1, 1, 2, 4, 8, 3, 16, 32, 5] + [32] * 3
    actual = decode(onnx_step, codes, chunks, *cold(step, 3), max_history(step.config))
    assert actual.shape == expected.shape
    assert_equal(actual, expected)
