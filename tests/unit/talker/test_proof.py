"""The talker's proof finds damage of each part that it runs; here on the CPU, with a tiny model in FP32."""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qwen3_tts_engine.checkpoint.checkpoint import WEIGHTS, Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.talker import golden as golden_cases
from qwen3_tts_engine.talker import proof
from qwen3_tts_engine.talker.golden import Cases, TalkerGolden
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps, TorchRows
from qwen3_tts_engine.talker.proof import BATCHES, TalkerProof, TalkerProofError
from qwen3_tts_engine.talker.runner import TalkerRunner

CPU = torch.device("cpu")
LARGEST = 4


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return Checkpoint.open(str(tiny_checkpoint))


@pytest.fixture(scope="module")
def golden(checkpoint: Checkpoint) -> TalkerGolden:
    with pytest.MonkeyPatch.context() as patch:
        # Tiny operations wait for a second thread.
        patch.setattr(golden_cases, "cores", lambda: 1)
        return TalkerGolden.compute(checkpoint, Cases.of(checkpoint.config))


@pytest.fixture
def computed(golden: TalkerGolden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Checkpoint]:
    """Caches in `tmp_path`, whatever the time, and lists the checkpoints whose cases are computed."""
    asked: list[Checkpoint] = []

    def compute(checkpoint: Checkpoint, *_: object) -> TalkerGolden:
        asked.append(checkpoint)
        return golden

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(golden_cases, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(TalkerGolden, "compute", compute)
    return asked


@pytest.fixture
def runner(checkpoint: Checkpoint) -> TalkerRunner:
    sizes = {"max_streams": LARGEST, "max_text_tokens": 64, "max_frames_limit": 64, "part_text_tokens": 0}
    settings = {**sizes, "kernels": "off"}
    config = EngineConfig.model_validate({"checkpoint": str(checkpoint.folder), **settings})
    return load_runner(checkpoint, config, CPU)


def prove(runner: TalkerRunner, golden: TalkerGolden, checkpoint: Checkpoint) -> None:
    TalkerProof(runner, golden, Cases.of(checkpoint.config)).run(60.0)


def test_right_operations_are_proven_with_all_batches_that_fit(
    runner: TalkerRunner, golden: TalkerGolden, checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        prove(runner, golden, checkpoint)
    batches = [str(batch) for batch in BATCHES if batch <= LARGEST]
    assert f"batches {', '.join(batches)}, worst distance 0.000" in caplog.text


def zero_output(value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    value[..., :16] = 0
    return value


def damage_product(patch: pytest.MonkeyPatch) -> None:
    right = TorchOps.norm_gated
    patch.setattr(TorchOps, "norm_gated", lambda *given: zero_output(right(*given)))


def damage_rows_beyond(patch: pytest.MonkeyPatch) -> None:
    """Only some rows of a batch differ, as if a kernel left tiles unwritten."""
    right = TorchOps.norm_gated

    def damaged(*given: Any) -> torch.Tensor:
        value = right(*given).clone()
        value[3:] = 0
        return value

    patch.setattr(TorchOps, "norm_gated", damaged)


def damage_prompts(patch: pytest.MonkeyPatch) -> None:
    """Prompts attend one position too far back."""
    right = TorchOps.paged_attention

    def damaged(ops: Any, cache: Any, slots: Any, positions: Any, *, prompts: int = 0, **options: Any) -> Any:
        wrong = (positions - 1).clamp(min=0) if prompts else positions
        return right(ops, cache, slots, wrong, prompts=prompts, **options)

    patch.setattr(TorchOps, "paged_attention", damaged)


def damage_head(patch: pytest.MonkeyPatch) -> None:
    """Logits of a half of the codes."""
    right = TorchOps.norm_logits
    patch.setattr(TorchOps, "norm_logits", lambda *given: right(*given).roll(7, dims=1))


def damage_codebook(patch: pytest.MonkeyPatch) -> None:
    right = TorchRows.draw

    def damaged(rows: Any, codebook: int, logits: torch.Tensor, *rest: Any) -> None:
        right(rows, codebook, -logits if codebook == 7 else logits, *rest)

    patch.setattr(TorchRows, "draw", damaged)


def damage_feedback(patch: pytest.MonkeyPatch) -> None:
    right = TorchRows.advance

    def damaged(rows: Any, *tables: Any) -> None:
        right(rows, *tables)
        rows._state.input[rows.slots] *= 1.05

    patch.setattr(TorchRows, "advance", damaged)


def damage_codes(patch: pytest.MonkeyPatch) -> None:
    """A code outside of the vocabulary, as from logits that are not numbers."""
    right = TalkerRunner.collect

    def damaged(runner: Any, tick: Any) -> Any:
        frames = right(runner, tick)
        frames.codes[-1, 3] = 1 << 20
        return frames

    patch.setattr(TalkerRunner, "collect", damaged)


def nan(patch: pytest.MonkeyPatch) -> None:
    right = TorchOps.add_linear

    def damaged(ops: Any, residual: Any, *rest: Any) -> None:
        right(ops, residual, *rest)
        residual.rows[0, 0] = torch.nan

    patch.setattr(TorchOps, "add_linear", damaged)


@pytest.mark.parametrize(
    "damage",
    [
        damage_product, damage_rows_beyond, damage_prompts, damage_head, damage_codebook, damage_feedback, damage_codes,
        nan,
    ],
)  # fmt: skip
def test_damage_is_found(
    runner: TalkerRunner,
    golden: TalkerGolden,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[pytest.MonkeyPatch], None],
) -> None:
    damage(monkeypatch)
    monkeypatch.setattr(proof, "BATCHES", (LARGEST,))
    with pytest.raises(TalkerProofError, match="the talker differs from its golden cases with"):
        prove(runner, golden, checkpoint)


def test_a_shared_page_is_found(runner: TalkerRunner, golden: TalkerGolden, checkpoint: Checkpoint) -> None:
    prefill = runner.prefill

    def damaged(newcomers: list[Any]) -> Any:
        for newcomer in newcomers[1:]:
            newcomer.pages[1] = newcomers[0].pages[1]
        return prefill(newcomers)

    runner.prefill = damaged  # type: ignore[method-assign]
    with pytest.raises(TalkerProofError, match="keys and values"):
        prove(runner, golden, checkpoint)


def test_rounding_stays_far_below_the_bound(golden: TalkerGolden) -> None:
    """Rounded to bfloat16 a layer is some thousandths away, so that the bound means something."""
    assert 1e-4 < golden.rounding < 0.05


def test_cases_are_computed_once_and_again_for_other_weights(
    checkpoint: Checkpoint, computed: list[Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again = (TalkerGolden.of(checkpoint) for _ in range(2))
    assert computed == [checkpoint]
    assert again is not first
    assert torch.equal(first.codes, again.codes)
    for a, b in zip(first.stored, again.stored, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    monkeypatch.setattr(golden_cases, "_digest", lambda *_: "of other weights")
    TalkerGolden.of(checkpoint)
    assert computed == [checkpoint] * 2


def test_several_models_compute_their_cases_one_after_the_other(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    in_turn, at_once = threading.Lock(), list[bool]()

    def compute(*_: object) -> None:
        at_once.append(not in_turn.acquire(blocking=False))
        # Gives way to the others.
        time.sleep(0.02)
        in_turn.release()

    monkeypatch.setattr(TalkerGolden, "compute", compute)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(TalkerGolden.of, [checkpoint] * 4))
    assert at_once == [False] * 4


def test_servers_of_one_checkpoint_that_start_at_once_compute_its_cases_once(
    checkpoint: Checkpoint, computed: list[Checkpoint]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(TalkerGolden.of, [checkpoint] * 4))
    assert computed == [checkpoint]


def test_a_damaged_or_missing_cache_does_not_matter(
    checkpoint: Checkpoint,
    computed: list[Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    TalkerGolden.of(checkpoint)
    [path] = tmp_path.rglob("*.safetensors")
    path.write_bytes(b"damaged")
    TalkerGolden.of(checkpoint)
    assert "unreadable, so computed again" in caplog.text
    assert computed == [checkpoint] * 2
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    TalkerGolden.of(checkpoint)
    assert "the next start computes the talker's golden cases again" in caplog.text
    assert computed == [checkpoint] * 3


def test_other_weights_have_another_digest(checkpoint: Checkpoint, tmp_path: Path) -> None:
    copy = Checkpoint.open(str(shutil.copytree(checkpoint.folder, tmp_path / "copy")))
    digest = golden_cases._digest(copy)
    assert digest == golden_cases._digest(checkpoint)
    path = copy.path(WEIGHTS)
    tensors = load_file(path)
    tensors["talker.codec_head.weight"][0] = 0
    save_file(tensors, path)
    assert golden_cases._digest(copy) != digest


def test_streams_that_are_shorter_than_an_utterance_are_proven_with_the_others(
    checkpoint: Checkpoint, golden: TalkerGolden, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {"max_streams": LARGEST, "max_text_tokens": 8, "max_frames_limit": 8, "kernels": "off"}
    config = EngineConfig.model_validate({"checkpoint": str(checkpoint.folder), **sizes})
    runner = load_runner(checkpoint, config, CPU)
    assert runner.limits.max_positions < max(golden_cases.PROMPT_ROWS)
    with caplog.at_level(logging.INFO):
        prove(runner, golden, checkpoint)
    assert f"batches 1, 2, {LARGEST}, worst distance 0.000" in caplog.text
