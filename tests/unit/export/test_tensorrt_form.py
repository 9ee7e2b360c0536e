"""`--form tensorrt` with a stand-in for TensorRT's Python: verification, manifests and refusals."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import typer
from onnx import numpy_helper
from rich.progress import Progress
from typer.testing import CliRunner

import export.__main__ as cli
from export.code2wav import Exported, export, is_current
from export.forms import onnx_form
from export.forms.form import Form
from export.forms.graph import OnnxGraph
from export.forms.onnx_form import ONNX, plan_profiles
from export.forms.onnx_opset import to_opset_17
from export.forms.tensorrt_form import tensorrt_form
from export.model_folder import ExportError
from export.modules.codec import CodecStep
from export.tensorrt import shared_plan
from export.tensorrt.process import PlanError, SharedTensors, TensorRtSettings
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.manifest import CodecManifest
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, MAX_FRAMES
from tests.fakes import plan_python

# Elements of the tiny codec's state.
STATE = 21868


@pytest.fixture(scope="module")
def half_graph(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny codec in FP16 as the exporter writes it; the export takes most of a minute."""
    path = tmp_path_factory.mktemp("onnx") / "half.onnx"
    onnx_form.graph(CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint)), torch.float16)).write(path)
    return path


@pytest.fixture(autouse=True)
def _export_once(half_graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(graph: OnnxGraph, path: Path) -> None:
        assert isinstance(graph.module, CodecStep)
        assert graph.module.dtype == torch.float16
        shutil.copy(half_graph, path)

    monkeypatch.setattr(OnnxGraph, "write", write)


@pytest.fixture
def form(fake_tensorrt: TensorRtSettings) -> Form:
    """The form with fewer and smaller batches to verify."""
    return replace(tensorrt_form(fake_tensorrt), batches=(1, 2, 8), utterance=40)


@pytest.fixture(autouse=True)
def _shared_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared file in place of device memory."""

    def mapped(shared: SharedTensors, device: torch.device) -> torch.Tensor:
        return torch.from_file(shared.handle.decode(), shared=True, size=shared.size, dtype=torch.uint8)

    monkeypatch.setattr(shared_plan, "mapped", mapped)


@pytest.fixture
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return Checkpoint.open(str(tiny_checkpoint))


def export_plan(checkpoint: Checkpoint, repository: Path, form: Form) -> Exported:
    with Progress(disable=True) as progress:
        return export(checkpoint, repository, form, progress)


def test_installs_a_verified_plan_with_its_facts(checkpoint: Checkpoint, tmp_path: Path, form: Form) -> None:
    exported = export_plan(checkpoint, tmp_path, form)
    folder = tmp_path / "code2wav" / "1"
    assert sorted(path.name for path in folder.iterdir()) == ["golden.safetensors", "model.json", "model.plan"]
    manifest = CodecManifest.read(folder)
    assert (manifest.form, manifest.state_dtype, manifest.opset) == ("tensorrt", "FP16", 17)
    assert manifest.codec_digest == checkpoint.codec_digest
    engine = manifest.engine
    assert engine is not None
    assert (engine.version, engine.gpu, engine.level) == ("10.14.1.48", "NVIDIA H200", 1)
    assert engine.size == (folder / "model.plan").stat().st_size
    assert manifest.chunk_frames == [*CHUNK_FRAMES]
    codes = [profile["codes"] for profile in engine.profiles]
    assert codes == [[[1, frames, 16], [32, frames, 16], [MAX_BATCH, frames, 16]] for frames in CHUNK_FRAMES]
    assert exported.agreement.snr_db > 35
    assert exported.lines[0] == str(engine)
    summary = r"verified 15 shapes \(batches 1, 2, 8 x 1, 2, 4, 8, 16 frames\) and an utterance of 3 s in \d+\.\d s"
    assert re.fullmatch(summary, exported.lines[1])
    assert "batch 64 x 4 frames: 25.60 ms, 100 us per frame" in exported.lines
    assert is_current(checkpoint, tmp_path, form)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("batch", r"(2|8) x \d+: -?\d+\.\d dB, .*"),
        ("shape:8x4", r"8 x 4( of one row)?: [78]\.\d dB, 8 x 4( of one row)?: [78]\.\d dB"),
        ("shape:1x16", r"1 x 16: [78]\.\d dB, utterance of 40 frames: \d+\.\d dB"),
        ("rows", r"(8 x \d+|2 x \d+ of one row|8 x \d+ of one row): 2\d\.\d dB, .*"),
        ("stale", r"\d x \d+( of one row)?: -inf dB, .* and \d+ more"),
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


def test_outputs_that_the_plan_does_not_write_are_nan(
    fake_tensorrt: TensorRtSettings, half_graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_python.build([str(half_graph), str(tmp_path / "model.plan"), "--profiles", json.dumps(plan_profiles(STATE))])
    monkeypatch.setenv("QWEN3_TTS_FAKE_PLAN", "stale")
    plan = tensorrt_form(fake_tensorrt).load(tmp_path / "model.plan")
    inputs = torch.zeros(1, 1, 16), torch.zeros(1, STATE), torch.zeros(1, 1)
    assert all(tensor.isfinite().all() for tensor in plan(*inputs))
    assert all(tensor.isnan().all() for tensor in plan(*inputs))


def test_a_crash_of_tensorrt_is_reported_and_leaves_no_plan(
    checkpoint: Checkpoint, tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN3_TTS_FAKE_PLAN", "crash")
    with pytest.raises(PlanError, match="TensorRT ended with exit code 3"):
        export_plan(checkpoint, tmp_path, form)
    assert not any((tmp_path / "code2wav" / "1").iterdir())


def test_refuses_a_shape_outside_the_profiles_and_serves_the_next(
    checkpoint: Checkpoint, form: Form, tmp_path: Path
) -> None:
    export_plan(checkpoint, tmp_path, form)
    plan = form.load(tmp_path / "code2wav" / "1" / "model.plan")
    state, history = torch.zeros(1, CodecManifest.read(tmp_path / "code2wav" / "1").state_size), torch.zeros(1, 1)
    for frames in (3, MAX_FRAMES):
        with pytest.raises(PlanError, match=rf"the plan does not support codes \[1, {frames}, 16\], state"):
            plan(torch.zeros(1, frames, 16), state, history)
    waveform, _ = plan(torch.zeros(1, 2, 16), state, history)
    assert waveform.shape == (1, 3840)


def test_verifies_every_batch_size() -> None:
    assert tensorrt_form(TensorRtSettings()).batches == tuple(range(1, MAX_BATCH + 1))


def test_build_only_does_not_verify_or_touch_the_repository(
    fake_tensorrt: TensorRtSettings, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    app = typer.Typer()
    app.command()(cli.main)
    paths = {"--checkpoint": tiny_checkpoint, "--model-repository": tmp_path, "--build-only": tmp_path / "out.plan"}
    options = [str(part) for pair in paths.items() for part in pair]
    options += ["--form", "tensorrt", "--tensorrt-python", str(fake_tensorrt.python)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0
    assert "NOT verified" in result.output
    assert (tmp_path / "out.plan").is_file()
    assert not (tmp_path / "code2wav").exists()


def test_opset_17_graph_has_the_same_outputs(tiny_code2wav: Path, tmp_path: Path) -> None:
    exported, portable = tiny_code2wav / "code2wav" / "1" / "model.onnx", tmp_path / "17.onnx"
    shutil.copy(exported, portable)
    to_opset_17(portable)
    model = onnx.load(portable)
    assert [opset.version for opset in model.opset_import if opset.domain == ""] == [17]
    shapes = [node for node in model.graph.node if node.op_type == "Shape"]
    assert shapes
    assert not any(node.attribute for node in shapes)
    state = np.zeros((3, CodecManifest.read(exported.parent).state_size), np.float32)
    codes = np.random.default_rng(0).integers(-5, 3000, (3, 5, 16), np.int32)
    inputs = torch.from_numpy(codes), torch.from_numpy(state), torch.tensor([[0], [3], [71]], dtype=torch.int32)
    for right, found in zip(ONNX.load(exported)(*inputs), ONNX.load(portable)(*inputs), strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5)


def test_snake_and_norms_stay_in_fp32(half_graph: Path) -> None:
    model = onnx.shape_inference.infer_shapes(onnx.load(half_graph))
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    exact = [
        node for node in model.graph.node if node.op_type in ("Sin", "ReduceMean", "LayerNormalization", "Softmax")
    ]
    assert len(exact) > 30
    assert {types[node.output[0]] for node in exact} == {onnx.TensorProto.FLOAT}
    convolutions = [node for node in model.graph.node if node.op_type in ("Conv", "MatMul")]
    assert {types[node.output[0]] for node in convolutions} == {onnx.TensorProto.FLOAT16}
    weights = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer if len(tensor.dims) >= 2]
    assert {w.dtype.name for w in weights if w.dtype.kind == "f" and w.size > 5000} == {"float16"}
