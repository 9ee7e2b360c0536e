"""The encoders as TensorRT plans: building, verification, manifests and refusals."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import typer
from google.protobuf import text_format
from rich.progress import Progress
from torch import nn
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner

import export.__main__ as cli
from export.encoders import (
    CODEC_ENCODER,
    MOST_FRAMES,
    SPEAKER_ENCODER,
    EncoderExport,
    export_encoder,
    graph,
    is_current,
)
from export.forms.graph import ONNX_RUNTIME, Runtime, TracedModule
from export.forms.onnx_opset import to_opset_17
from export.forms.program_form import ONNX_PROGRAM
from export.forms.tensorrt_plan import build, tensorrt
from export.model_folder import ExportError
from export.modules.codec_encoder import CodecEncoder
from export.modules.speaker_encoder import SpeakerEncoder
from export.tensorrt.process import PlanError, TensorRtSettings
from qwen3_tts_engine import startup
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError, SpeakerEncoderConfig, SpeechTokenizerConfig
from qwen3_tts_engine.checkpoint.manifest import EncoderManifest
from qwen3_tts_engine.checkpoint.tensor_shapes import codec_encoder_shapes, speaker_encoder_shapes
from qwen3_tts_engine.config import EngineConfig
from scripts.synthetic.configs import Size, model_config, speech_tokenizer_config
from scripts.synthetic.weights import initial
from tests.conftest import CheckpointOf

pytestmark = pytest.mark.long

ENCODERS = (SPEAKER_ENCODER, CODEC_ENCODER)
SIZES: tuple[Size, ...] = ("tiny", "1.7b")


def synthetic(encoder: EncoderExport, size: Size) -> nn.Module:
    def tensors(shapes: Any) -> dict[str, torch.Tensor]:
        return {name: initial(name, shape, 0, torch.device("cpu")) for name, shape in shapes.items()}

    if encoder is SPEAKER_ENCODER:
        speaker = SpeakerEncoderConfig.model_validate(model_config(size, "base", {})["speaker_encoder_config"])
        return SpeakerEncoder(speaker, tensors(speaker_encoder_shapes(speaker))).eval()
    codec = SpeechTokenizerConfig.model_validate(speech_tokenizer_config(size))
    shapes = codec_encoder_shapes(codec.encoder_config)
    return CodecEncoder(codec.encoder_config, codec.encoder_valid_num_quantizers, tensors(shapes)).eval()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: encoder.name)
def test_tensorrt_for_rtx_builds_plans_for_references_of_any_length(
    encoder: EncoderExport, size: Size, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx_bindings", reason="the extra tensorrt-rtx")
    module, plan = synthetic(encoder, size), tmp_path / "model.plan"
    engine = build(TensorRtSettings(cache=tmp_path), graph(encoder, module), plan)
    assert engine.strongly_typed
    assert engine.size == plan.stat().st_size > sum(buffer.nbytes for buffer in module.buffers()) / 2
    [profile] = engine.profiles
    shapes = {name: [tuple(shape) for shape in sizes] for name, sizes in profile.items()}
    assert (
        shapes
        == {
            "speaker_encoder": {"mel": [(1, 7, 128), (1, 285, 128), (1, 2812, 128)]},
            "codec_encoder": {
                "audio": [(1, 1, 1920), (1, 38, 1920), (1, 375, 1920)],
                "num_samples": [(1, 1), (1, 1), (1, 1)],
            },
        }[encoder.name]
    )


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: encoder.name)
def test_opset_17_graph_has_the_same_output(encoder: EncoderExport, tiny_base_models: Path, tmp_path: Path) -> None:
    exported, portable = tiny_base_models / encoder.name / "1" / "model.onnx", tmp_path / "17.onnx"
    shutil.copy(exported, portable)
    to_opset_17(portable)
    model = onnx.load(portable)
    assert [opset.version for opset in model.opset_import if opset.domain == ""] == [17]
    assert not any(node.op_type == "Clip" for node in model.graph.node)
    assert all(not node.attribute for node in model.graph.node if node.op_type == "Shape")
    for frames in (1, 7, 50):
        inputs = encoder.inputs(frames)
        right, found = (ONNX_RUNTIME.load(path)(inputs)[encoder.output] for path in (exported, portable))
        np.testing.assert_allclose(found, right, atol=1e-5)


@pytest.fixture
def checkpoint(checkpoint_of: CheckpointOf) -> Checkpoint:
    return Checkpoint.open(str(checkpoint_of("base")))


@pytest.fixture
def runtime(fake_tensorrt: TensorRtSettings, tiny_base_models: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """The TensorRT runtime, with graphs that were exported before."""

    def write(graph: TracedModule, path: Path, metadata: Mapping[str, str] | None = None) -> None:
        encoder = SPEAKER_ENCODER if isinstance(graph.module, SpeakerEncoder) else CODEC_ENCODER
        shutil.copy(tiny_base_models / encoder.name / "1" / "model.onnx", path)

    monkeypatch.setattr(TracedModule, "write", write)
    return tensorrt(fake_tensorrt)


def export_plan(encoder: EncoderExport, checkpoint: Checkpoint, folder: Path, runtime: Runtime) -> list[str]:
    with Progress(disable=True) as progress:
        return export_encoder(encoder, checkpoint, folder, runtime, progress)


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: encoder.name)
def test_installs_a_verified_plan_with_its_facts(
    encoder: EncoderExport, checkpoint: Checkpoint, runtime: Runtime, tmp_path: Path
) -> None:
    folder = tmp_path / "models" / f"{encoder.name}_large"
    agreement, facts = export_plan(encoder, checkpoint, folder, runtime)
    measured = float(agreement.removeprefix("max error ").split()[0].rstrip("%"))
    assert (measured if encoder is SPEAKER_ENCODER else measured / 100) <= encoder.limit
    assert sorted(path.name for path in (folder / "1").iterdir()) == ["model.json", "model.plan"]
    manifest = EncoderManifest.read(folder / "1")
    assert (manifest.form, manifest.opset, manifest.digest) == ("tensorrt", 17, encoder.digest(checkpoint))
    engine = manifest.engine
    assert engine is not None
    assert (engine.version, engine.gpu, engine.level) == ("10.14.1.48", "NVIDIA H200", 1)
    assert facts == str(engine)
    config = text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert (config.name, config.backend) == (folder.name, "tensorrt")
    assert is_current(encoder, checkpoint, folder, runtime)
    assert not is_current(encoder, checkpoint, folder, ONNX_PROGRAM)


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: encoder.name)
@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [("wrong", ExportError, "differs from PyTorch for 1 frames"), ("crash", PlanError, "exit code 3")],
)
def test_deletes_a_plan_that_fails_verification(
    encoder: EncoderExport, fault: str, error: type[Exception], message: str, checkpoint: Checkpoint, runtime: Runtime,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = tmp_path / encoder.name
    monkeypatch.setenv("QWEN3_TTS_FAKE_PLAN", fault)
    with pytest.raises(error, match=message):
        export_plan(encoder, checkpoint, folder, runtime)
    assert [path.name for path in folder.iterdir()] == ["1"]
    assert not any((folder / "1").iterdir())


def test_another_form_replaces_the_previous_one(
    checkpoint: Checkpoint, runtime: Runtime, tiny_base_models: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_base_models / "speaker_encoder", tmp_path / "speaker_encoder")
    assert not is_current(SPEAKER_ENCODER, checkpoint, folder, runtime)
    export_plan(SPEAKER_ENCODER, checkpoint, folder, runtime)
    assert EncoderManifest.read(folder / "1").form == "tensorrt"
    assert 'backend: "tensorrt"' in (folder / "config.pbtxt").read_text()
    export_plan(SPEAKER_ENCODER, checkpoint, folder, ONNX_PROGRAM)
    assert EncoderManifest.read(folder / "1").engine is None
    config = (folder / "config.pbtxt").read_text()
    assert 'backend: "python"' in config
    assert '"executor" value { string_value: "onnxruntime" }' in config
    assert (folder / "1" / "model.py").is_file()


def test_command_exports_encoders_in_their_form(
    checkpoint: Checkpoint, runtime: Runtime, fake_tensorrt: TensorRtSettings, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Leaves out the codec, whose export takes most of a minute."""
    monkeypatch.setattr(cli, "_export", lambda *arguments: None)
    app = typer.Typer()
    app.command()(cli.main)
    options = ["--checkpoint", str(checkpoint.folder), "--model-repository", str(tmp_path), "--speaker-encoder", "anna"]
    for form, expected in (("tensorrt", "tensorrt"), ("python", "python"), ("onnx", "onnx")):
        result = CliRunner().invoke(app, [*options, "--form", form, "--tensorrt-python", str(fake_tensorrt.python)])
        assert result.exit_code == 0, result.output
        assert f"{tmp_path / 'anna'}: max error" in result.output.replace("\n", "")
        found = [EncoderManifest.read(tmp_path / name / "1").form for name in ("anna", "codec_encoder")]
        assert found == [expected, expected]


@pytest.fixture
def repository(checkpoint: Checkpoint, runtime: Runtime, tmp_path: Path) -> Path:
    """Plans of both encoders, built with TensorRT 10.14.1 for an H200."""
    for encoder in ENCODERS:
        export_plan(encoder, checkpoint, tmp_path / "models" / encoder.name, runtime)
    return tmp_path / "models"


def check(checkpoint: Checkpoint, repository: Path, device: str = "cuda:0", **settings: Any) -> None:
    config = EngineConfig(checkpoint="base", **settings)
    startup.check_encoders(checkpoint, config, repository, torch.device(device))


@pytest.mark.parametrize(
    ("gpu", "version", "seconds", "message"),
    [
        ("NVIDIA L4", "10.14.1", 30, "speaker_encoder/1/model.json: engine.gpu is NVIDIA H200, this machine has .* L4"),
        ("NVIDIA H200", "10.15.1", 30, "engine.version is 10.14.1.48, TensorRT here is 10.15.1"),
        ("NVIDIA H200", "10.14.1", 31, r"engine.profiles: none supports mel \[1, 2910, 128\]"),
    ],
)
def test_server_refuses_a_plan_for_another_gpu_version_or_length(
    checkpoint: Checkpoint, repository: Path, monkeypatch: pytest.MonkeyPatch,
    gpu: str, version: str, seconds: float, message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr("qwen3_tts_engine.checkpoint.tensorrt_plan.tensorrt_version", lambda engine: "10.14.1")
    check(checkpoint, repository)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: gpu)
    monkeypatch.setattr("qwen3_tts_engine.checkpoint.tensorrt_plan.tensorrt_version", lambda engine: version)
    with pytest.raises(CheckpointError, match=message):
        check(checkpoint, repository, max_reference_seconds=seconds)


def test_server_refuses_a_missing_plan_and_a_plan_on_the_cpu(checkpoint: Checkpoint, repository: Path) -> None:
    with pytest.raises(CheckpointError, match="form is tensorrt, which requires a CUDA device, this model runs on cpu"):
        check(checkpoint, repository, "cpu")
    (repository / "speaker_encoder" / "1" / "model.plan").unlink()
    with pytest.raises(CheckpointError, match=r"speaker_encoder/1/model\.plan: missing; `python -m export --form"):
        check(checkpoint, repository)


def test_plans_fit_the_longest_reference_of_the_default_settings() -> None:
    assert MOST_FRAMES == EngineConfig(checkpoint="any").max_reference_frames == 375
