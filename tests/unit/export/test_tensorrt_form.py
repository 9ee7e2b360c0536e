"""`--form tensorrt` with a stand-in for TensorRT's Python: verification, manifests and refusals."""

import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from rich.progress import Progress
from typer.testing import CliRunner

import export.__main__ as cli
from code2wav_step.weights import StepWeights
from export.code2wav import Exported, export, is_current
from export.forms.form import Form
from export.forms.python_form import PYTHON
from export.forms.tensorrt_form import tensorrt_form
from export.model_folder import ExportError
from export.tensorrt.process import PlanError, TensorRtSettings
from export.verify_calls import CallVerification
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.manifest import CodecManifest
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, MAX_FRAMES, NUM_ROWS, ZERO_ROW

pytest.importorskip("triton", reason="Triton is not installed")

from code2wav_step.kernel_ops import KernelError
from export.tensorrt import step_program


@pytest.fixture
def settings(
    fake_tensorrt: TensorRtSettings, tiny_python_code2wav: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TensorRtSettings:
    """Settings with a plugin whose programs have the weights in place of kernels."""

    def write(weights: StepWeights, shapes: Iterable[tuple[int, int]], path: Path) -> None:
        assert weights.codebooks.dtype == torch.float16
        assert list(shapes) == [(rows, frames) for frames in CHUNK_FRAMES for rows in range(1, MAX_BATCH + 1)]
        shutil.copyfile(tiny_python_code2wav / "code2wav" / "1" / PYTHON.filename, path)

    monkeypatch.setattr(step_program, "write_program", write)
    return replace(fake_tensorrt, plugin=tmp_path)


@pytest.fixture
def form(settings: TensorRtSettings) -> Form:
    """The form with fewer and smaller batches to verify."""
    return replace(tensorrt_form(settings), verification=partial(CallVerification, batches=(1, 2, 8), utterance=40))


@pytest.fixture
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return Checkpoint.open(str(tiny_checkpoint))


def export_plan(checkpoint: Checkpoint, repository: Path, form: Form) -> Exported:
    with Progress(disable=True) as progress:
        return export(checkpoint, repository, form, progress)


def test_installs_a_verified_plan_that_refuses_other_shapes(checkpoint: Checkpoint, tmp_path: Path, form: Form) -> None:
    exported = export_plan(checkpoint, tmp_path, form)
    folder = tmp_path / "code2wav" / "1"
    assert sorted(path.name for path in folder.iterdir()) == ["golden.safetensors", "model.json", "model.plan"]
    manifest = CodecManifest.read(folder)
    assert (manifest.form, manifest.state_dtype, manifest.opset) == ("tensorrt", "FP16", None)
    assert manifest.codec_digest == checkpoint.codec_digest
    engine = manifest.engine
    assert engine is not None
    assert (engine.version, engine.gpu, engine.level) == ("10.14.1.48", "NVIDIA H200", 1)
    assert engine.size == (folder / "model.plan").stat().st_size
    assert manifest.chunk_frames == [*CHUNK_FRAMES]
    [profile] = engine.profiles
    assert profile == {"codes": [[1, 1, 16], [32, 4, 16], [MAX_BATCH, 16, 16]], "places": [[1, 4], [32, 4], [64, 4]]}
    assert engine.plugin
    assert exported.agreement.snr_db > 35
    assert exported.lines[0] == str(engine)
    summary = r"verified 15 shapes \(batches 1, 2, 8 x 1, 2, 4, 8, 16 frames\) and an utterance of 3 s in \d+\.\d s"
    assert re.fullmatch(summary, exported.lines[1])
    assert "batch 64 x 4 frames: 25.60 ms, 100 us per frame" in exported.lines
    assert is_current(checkpoint, tmp_path, form)
    check_refuses_a_shape_outside_the_profile(tmp_path, form)


def check_refuses_a_shape_outside_the_profile(repository: Path, form: Form) -> None:
    """And serves the next call."""
    call = form.load(repository / "code2wav" / "1" / "model.plan")
    public = np.array([[ZERO_ROW, NUM_ROWS - 1, 0, 0]], np.int32)
    with pytest.raises(PlanError, match=rf"the plan does not support codes \[1, {MAX_FRAMES}, 16\], places \[1, 4\]"):
        call(np.zeros((1, MAX_FRAMES, 16), np.int32), public)
    samples = call(np.zeros((1, 2, 16), np.int32), public)
    assert (samples.shape, samples.dtype) == ((1, 3840), np.int16)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("batch", r"(2|8) x \d+: -?\d+\.\d dB, .*"),
        ("shape:8x4", r"8 x 4: [78]\.\d dB, 8 x 4: [78]\.\d dB"),
        ("shape:1x16", r"1 x 16: [78]\.\d dB, utterance of 40 frames: \d+\.\d dB"),
        ("rows", r"(8 x \d+|2 x \d+): 2\d\.\d dB, .*"),
        ("stale", r"\d x \d+: -?\d+\.\d dB, .*"),
    ],
)
def test_deletes_a_wrong_plan_and_names_its_shapes(
    fault: str, named: str, checkpoint: Checkpoint, tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN3_TTS_FAKE_PLAN", fault)
    limits = r"SNR -?\S+ dB, .*limits: .*SNR from 30\.0 dB, drift up to 3\.0 dB\)"
    with pytest.raises(ExportError, match=rf"{limits}; by rows x frames: {named}; deleted\. Build with another"):
        export_plan(checkpoint, tmp_path, form)
    assert not any((tmp_path / "code2wav" / "1").iterdir())


@pytest.mark.long
def test_a_crash_of_tensorrt_is_reported_and_leaves_no_plan(
    checkpoint: Checkpoint, tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN3_TTS_FAKE_PLAN", "crash")
    with pytest.raises(PlanError, match="TensorRT ended with exit code 3"):
        export_plan(checkpoint, tmp_path, form)
    assert not any((tmp_path / "code2wav" / "1").iterdir())


@pytest.mark.long
def test_the_codec_needs_the_plugin(fake_tensorrt: TensorRtSettings, checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"no plugin: set QWEN3_TTS_TENSORRT_PLUGIN to the library of .*, or --form py"):
        export_plan(checkpoint, tmp_path, tensorrt_form(fake_tensorrt))
    assert not any((tmp_path / "code2wav" / "1").iterdir())


@pytest.mark.long
def test_a_plan_with_too_few_rows_is_not_kept(
    checkpoint: Checkpoint, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens on a small GPU."""
    monkeypatch.setenv("QWEN3_TTS_FAKE_PLAN", "rows missing")
    with pytest.raises(PlanError, match="cannot be verified, so it is not kept: code2wav has 0 of 64 rows left"):
        export_plan(checkpoint, tmp_path, form)
    assert not any((tmp_path / "code2wav" / "1").iterdir())


def test_a_codec_without_kernels_is_refused(
    settings: TensorRtSettings, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise KernelError("heads of 16")

    monkeypatch.setattr(step_program, "write_program", refuse)
    with pytest.raises(PlanError, match="the plugin does not support this codec: heads of 16: export --form python"):
        export_plan(checkpoint, tmp_path, tensorrt_form(settings))


def test_build_only_does_not_verify_or_touch_the_repository(
    settings: TensorRtSettings, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    app = typer.Typer()
    app.command()(cli.main)
    paths = {"--checkpoint": tiny_checkpoint, "--model-repository": tmp_path, "--build-only": tmp_path / "out.plan"}
    options = [str(part) for pair in paths.items() for part in pair]
    options += ["--form", "tensorrt", "--tensorrt-python", str(settings.python), "--tensorrt-plugin", str(tmp_path)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0
    assert "NOT verified" in result.output
    assert (tmp_path / "out.plan").is_file()
    assert not (tmp_path / "code2wav").exists()
