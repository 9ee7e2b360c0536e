"""The codec step by ONNX Runtime: agreement with the exporter's step, and files that cannot be loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from code2wav_step import startup
from code2wav_step.onnx_runner import MODEL_FILE, OnnxStepRunner
from code2wav_step.rows import Rows
from export.agreement import Agreement, compare, compare_step
from export.forms.onnx_form import verification
from export.modules.codec import CodecStep
from export.reference import Reference
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, NO_SAMPLE, NUM_ROWS, PCM_SCALE

CPU = torch.device("cpu")
KEY, OTHER_KEY = 5, 6
# What 16 bits leave of a waveform in FP32.
LIMIT = Agreement(max_error=1e-4, snr_db=60.0)


@pytest.fixture(scope="module")
def folder(tiny_code2wav: Path) -> Path:
    return tiny_code2wav / "code2wav" / "1"


@pytest.fixture(scope="module")
def runner(folder: Path) -> OnnxStepRunner:
    runner = startup.load_runner(folder, startup.ONNX_RUNTIME, CPU)
    assert isinstance(runner, OnnxStepRunner)
    return runner


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Reference:
    return Reference(CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint))))


@pytest.fixture
def rows(runner: OnnxStepRunner) -> Rows:
    return Rows(runner.config.state_size, torch.float32, CPU, runner.config.contract)


def test_samples_and_states_match_the_exporters_step(runner: OnnxStepRunner, rows: Rows, reference: Reference) -> None:
    """Three streams in chunks of any length, beyond the window, which move to other rows in between."""
    random = np.random.default_rng(0)
    state, decoded, row = reference.cold(3), 0, np.zeros(3, int)
    for frames in (1, 3, 32, 16, 7, 32, 2):
        codes = random.integers(0, 2048, (3, frames, 16), np.int32)
        history = reference.history(3, decoded)
        waveform, state = reference(torch.from_numpy(codes), state, history)
        following = random.permutation(NUM_ROWS // 2)[:3] + 1
        places = np.stack([row, following, history[:, 0].numpy(), np.full(3, KEY)], axis=1).astype(np.int32)
        pcm = runner.advance(codes, rows, rows.open(places))
        row, decoded = following, decoded + frames
        stored = rows.gather(rows.open(np.stack([row, row, row, row * 0 + KEY], axis=1).astype(np.int32)))
        assert compare_step((waveform.clamp(-1, 1), state), (pcm / PCM_SCALE, stored)).within(LIMIT), decoded
        assert pcm.dtype == torch.int16


@pytest.mark.parametrize("frames", CHUNK_FRAMES)
def test_a_large_batch_runs_in_verified_shapes(
    runner: OnnxStepRunner, rows: Rows, reference: Reference, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries read what was stored before the call, also where another one writes it."""
    ran, session, count = set(), runner._session, 20
    verified = {(case.rows, case.frames) for case in verification(reference._step, reference).cases}

    class Recorded:
        def run(self, names: tuple[str, ...], inputs: dict[str, np.ndarray]) -> Any:
            ran.add(inputs["codes"].shape[:2])
            return session.run(names, inputs)

    monkeypatch.setattr(runner, "_session", Recorded())
    codes = np.random.default_rng(0).integers(0, 2048, (2, count, frames, 16), np.int32)
    row = np.arange(count) + 1
    states = reference.cold(count)
    for part, (before, after) in enumerate([(0 * row, row), (row, row[::-1])]):
        waveform, states = reference(torch.from_numpy(codes[part]), states, reference.history(count, part * frames))
        places = np.stack([before, after, np.full(count, part * frames), np.full(count, KEY)], axis=1)
        pcm = runner.advance(codes[part], rows, rows.open(places.astype(np.int32)))
        assert compare(waveform.clamp(-1, 1), pcm / PCM_SCALE).within(LIMIT)
    assert ran <= verified


def test_denied_entries_write_nowhere(runner: OnnxStepRunner, rows: Rows) -> None:
    codes = np.random.default_rng(0).integers(0, 2048, (2, 2, 16), np.int32)
    runner.advance(codes[:1], rows, rows.open(np.array([(0, 1, 0, KEY)], np.int32)))
    own = rows.open(np.array([(1, 1, 2, KEY)], np.int32))
    before = rows.gather(own)
    both = rows.open(np.array([(1, 1, 2, OTHER_KEY), (0, 2, 0, OTHER_KEY)], np.int32))
    assert both.denied.tolist() == [True, False]
    runner.advance(codes, rows, both)
    assert torch.equal(rows.gather(own), before)


def test_rows_that_overflow_are_marked(runner: OnnxStepRunner, rows: Rows) -> None:
    places = rows.open(np.array([(0, 1, 0, KEY), (0, 2, 0, KEY)], np.int32))
    rows.scatter(places, torch.tensor([[torch.nan], [0.0]]).expand(2, runner.config.state_size))
    places = rows.open(np.array([(1, 1, 9, KEY), (2, 2, 9, KEY)], np.int32))
    pcm = runner.advance(np.zeros((2, 1, 16), np.int32), rows, places)
    assert pcm[0, :2].tolist() == [NO_SAMPLE, 0]
    assert pcm[1, 0] != NO_SAMPLE


def test_preparing_a_call_changes_nothing(runner: OnnxStepRunner, rows: Rows) -> None:
    places = rows.open(np.array([(0, 1, 0, KEY)], np.int32))
    runner.prepare(np.zeros((1, 1, 16), np.int32), rows, places)
    assert not rows.gather(rows.open(np.array([(1, 1, 1, KEY)], np.int32))).any()


def test_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.onnx: missing; `python -m export --form onnx` writes it"):
        startup.load_runner(tmp_path, startup.ONNX_RUNTIME, CPU)


def test_names_the_file_of_another_model(tmp_path: Path) -> None:
    """A graph without what the exporter writes beside it."""
    [given, returned] = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "ab")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["a"], ["b"])], "other", [given], [returned])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / MODEL_FILE)
    with pytest.raises(
        ValueError,
        match=r"model\.onnx: not an exported code2wav step of this version: .*; run `python -m export` again",
    ):
        startup.load_runner(tmp_path, startup.ONNX_RUNTIME, CPU)


@pytest.mark.parametrize("size", [0, 1000])
def test_names_a_damaged_file(folder: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / MODEL_FILE).write_bytes((folder / MODEL_FILE).read_bytes()[:size])
    with pytest.raises(Exception, match=r"model\.onnx"):
        startup.load_runner(tmp_path, startup.ONNX_RUNTIME, CPU)
