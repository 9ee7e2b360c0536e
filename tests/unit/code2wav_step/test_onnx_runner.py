"""The codec step by ONNX Runtime: agreement with the exporter's step, and files that cannot be loaded."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from code2wav_step import executors
from code2wav_step.onnx_runner import MODEL_FILE, OnnxStepRunner
from code2wav_step.rows import HostRows
from export.agreement import Agreement, compare, compare_step
from export.forms.onnx_form import verification
from export.modules.codec import CodecStep
from export.reference import Reference
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, NO_SAMPLE, NUM_ROWS, PCM_SCALE

KEY, OTHER_KEY = 5, 6
# What 16 bits leave of a waveform in FP32.
LIMIT = Agreement(max_error=1e-4, snr_db=60.0)


@pytest.fixture(scope="module")
def folder(tiny_code2wav: Path) -> Path:
    return tiny_code2wav / "code2wav" / "1"


@pytest.fixture(scope="module")
def runner(folder: Path) -> OnnxStepRunner:
    runner = executors.load_runner(folder, executors.ONNX_RUNTIME, {})
    assert isinstance(runner, OnnxStepRunner)
    return runner


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Reference:
    return Reference(CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint))))


@pytest.fixture
def rows(runner: OnnxStepRunner) -> HostRows:
    return runner.new_rows()


def test_samples_and_states_match_the_exporters_step(
    runner: OnnxStepRunner, rows: HostRows, reference: Reference
) -> None:
    """Three streams in chunks of any length, beyond the window, which move to other rows in between."""
    random = np.random.default_rng(0)
    state, decoded, row = reference.cold(3), 0, np.zeros(3, int)
    for frames in (1, 3, 32, 16, 7, 32, 2):
        codes = random.integers(0, 2048, (3, frames, 16), np.int32)
        history = reference.history(3, decoded)
        waveform, state = reference(torch.from_numpy(codes), state, history)
        following = random.permutation(NUM_ROWS // 2)[:3] + 1
        places = np.stack([row, following, history[:, 0].numpy(), np.full(3, KEY)], axis=1).astype(np.int32)
        pcm = runner.decode(codes, rows, rows.open(places))
        row, decoded = following, decoded + frames
        own = rows.open(np.stack([row, row, row, row * 0 + KEY], axis=1).astype(np.int32))
        found = torch.from_numpy(pcm) / PCM_SCALE, torch.from_numpy(rows.gather(own))
        assert compare_step((waveform.clamp(-1, 1), state), found).within(LIMIT), decoded
        assert pcm.dtype == np.int16


@pytest.mark.parametrize("frames", CHUNK_FRAMES)
def test_a_large_batch_runs_in_verified_shapes(
    runner: OnnxStepRunner, rows: HostRows, reference: Reference, frames: int, monkeypatch: pytest.MonkeyPatch
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
        pcm = runner.decode(codes[part], rows, rows.open(places.astype(np.int32)))
        assert compare(waveform.clamp(-1, 1), torch.from_numpy(pcm) / PCM_SCALE).within(LIMIT)
    assert ran <= verified


def test_denied_entries_write_nowhere(runner: OnnxStepRunner, rows: HostRows) -> None:
    codes = np.random.default_rng(0).integers(0, 2048, (2, 2, 16), np.int32)
    runner.decode(codes[:1], rows, rows.open(np.array([(0, 1, 0, KEY)], np.int32)))
    own = rows.open(np.array([(1, 1, 2, KEY)], np.int32))
    before = rows.gather(own)
    both = rows.open(np.array([(1, 1, 2, OTHER_KEY), (0, 2, 0, OTHER_KEY)], np.int32))
    assert both.denied.tolist() == [True, False]
    runner.decode(codes, rows, both)
    assert (rows.gather(own) == before).all()


def test_rows_that_overflow_are_marked(runner: OnnxStepRunner, rows: HostRows) -> None:
    places = rows.open(np.array([(0, 1, 0, KEY), (0, 2, 0, KEY)], np.int32))
    rows.scatter(places, np.repeat(np.array([[np.nan], [0]], np.float32), runner.config.state_size, axis=1))
    places = rows.open(np.array([(1, 1, 9, KEY), (2, 2, 9, KEY)], np.int32))
    pcm = runner.decode(np.zeros((2, 1, 16), np.int32), rows, places)
    assert pcm[0, :2].tolist() == [NO_SAMPLE, 0]
    assert pcm[1, 0] != NO_SAMPLE


def test_preparing_a_call_changes_nothing(runner: OnnxStepRunner, rows: HostRows) -> None:
    places = rows.open(np.array([(0, 1, 0, KEY)], np.int32))
    runner.prepare(np.zeros((1, 1, 16), np.int32), rows, places)
    assert not rows.gather(rows.open(np.array([(1, 1, 1, KEY)], np.int32))).any()


def test_the_process_of_a_cpu_does_without_pytorch() -> None:
    """It would take two seconds and 200 MB."""
    program = (
        "import sys; from code2wav_step import executors, line, onnx_runner, requests; print('torch' in sys.modules)"
    )
    path = Path(executors.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.onnx: missing; `python -m export --form onnx` writes it"):
        executors.load_runner(tmp_path, executors.ONNX_RUNTIME, {})


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
        executors.load_runner(tmp_path, executors.ONNX_RUNTIME, {})


@pytest.mark.parametrize("size", [0, 1000])
def test_names_a_damaged_file(folder: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / MODEL_FILE).write_bytes((folder / MODEL_FILE).read_bytes()[:size])
    with pytest.raises(Exception, match=r"model\.onnx"):
        executors.load_runner(tmp_path, executors.ONNX_RUNTIME, {})
