"""`--form tensorrt` with a stand-in for the Python that has TensorRT: what is verified, kept, recorded and refused."""

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
from export import onnx_form
from export.code2wav import Exported, export, is_current
from export.codec import CodecStep
from export.form import Form
from export.graph import Graph
from export.model_folder import ExportError
from export.onnx_form import ONNX
from export.onnx_opset import to_opset_17
from export.plan_process import PlanError, TensorRtSettings
from export.tensorrt_form import tensorrt_form
from export.verify import Agreement, compare_utterance
from qwen3_tts_engine.checkpoint import Checkpoint
from qwen3_tts_engine.code2wav import MAX_BATCH, MAX_FRAMES
from qwen3_tts_engine.manifest import CodecManifest


@pytest.fixture(scope="module")
def half_graph(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny codec in FP16 as the exporter writes it, which takes it most of a minute."""
    path = tmp_path_factory.mktemp("onnx") / "half.onnx"
    onnx_form.graph(CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint)), torch.float16)).write(path)
    return path


@pytest.fixture(autouse=True)
def _export_once(half_graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(graph: Graph, path: Path) -> None:
        assert isinstance(graph.module, CodecStep)
        assert graph.module.dtype == torch.float16
        shutil.copy(half_graph, path)

    monkeypatch.setattr(Graph, "write", write)


@pytest.fixture
def form(fake_tensorrt: TensorRtSettings) -> Form:
    """Fewer and smaller batches than the real one's."""
    return replace(tensorrt_form(fake_tensorrt), cases=((1, 1), (2, 3)), utterance=40)


@pytest.fixture
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return Checkpoint.open(str(tiny_checkpoint))


def export_plan(checkpoint: Checkpoint, repository: Path, form: Form) -> Exported:
    with Progress(disable=True) as progress:
        return export(checkpoint, repository, form, progress)


def test_verified_plan_is_put_in_place_with_its_facts(checkpoint: Checkpoint, tmp_path: Path, form: Form) -> None:
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
    assert engine.profile["codes"] == [[1, 1, 16], [32, 4, 16], [MAX_BATCH, MAX_FRAMES, 16]]
    assert exported.agreement.snr_db > 35
    assert exported.lines[0] == str(engine)
    assert "batch 64 x 4 frames: 25.60 ms, 100 us per frame" in exported.lines
    assert is_current(checkpoint, tmp_path, form)


def test_plan_that_mixes_rows_is_deleted(
    checkpoint: Checkpoint, tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN3_TTS_FAKE_PLAN", "batch")
    with pytest.raises(ExportError, match=r"SNR .* dB.*limits: .*SNR from 30\.0 dB, drift up to 3\.0 dB.*deleted"):
        export_plan(checkpoint, tmp_path, form)
    assert not any((tmp_path / "code2wav" / "1").iterdir())


def test_crash_of_tensorrt_is_an_error_and_no_plan(
    checkpoint: Checkpoint, tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN3_TTS_FAKE_PLAN", "crash")
    with pytest.raises(PlanError, match="TensorRT ended with exit code 3"):
        export_plan(checkpoint, tmp_path, form)
    assert not any((tmp_path / "code2wav" / "1").iterdir())


def test_shape_outside_the_profile_is_refused_and_the_next_one_served(
    checkpoint: Checkpoint, form: Form, tmp_path: Path
) -> None:
    export_plan(checkpoint, tmp_path, form)
    plan = form.load(tmp_path / "code2wav" / "1" / "model.plan")
    state = np.zeros((1, CodecManifest.read(tmp_path / "code2wav" / "1").state_size), np.float32)
    with pytest.raises(PlanError, match=r"codes: the plan does not take the shape \[1, 33, 16\]"):
        plan(np.zeros((1, MAX_FRAMES + 1, 16)), state, np.zeros((1, 1)))
    waveform, _ = plan(np.zeros((1, 2, 16)), state, np.zeros((1, 1)))
    assert waveform.shape == (1, 3840)


def test_cases_are_those_that_found_wrong_plans_before() -> None:
    cases = tensorrt_form(TensorRtSettings()).cases
    assert {batch for batch, _ in cases} == {1, 2, 7, MAX_BATCH}
    assert {frames for batch, frames in cases if batch == 2} == set(range(1, MAX_FRAMES + 1))


def test_drift_within_an_utterance_is_seen() -> None:
    sound = np.random.default_rng(0).standard_normal(4000)
    error = np.concatenate([np.full(2000, 1e-3), np.full(2000, 1e-2)])
    agreement = compare_utterance(sound, sound + error)
    assert agreement.drift_db == pytest.approx(20, abs=1)
    assert not agreement.within(Agreement(max_error=1, snr_db=0))


def test_build_only_leaves_the_repository_alone_and_says_so(
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


def test_opset_17_says_the_same(tiny_code2wav: Path, tmp_path: Path) -> None:
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
    inputs = codes, state, np.array([[0], [3], [71]], np.int32)
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
