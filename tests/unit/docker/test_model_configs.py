"""Every config.pbtxt is literal and loadable, and matches the code's names, types and limits."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from code2wav_step import executors, onnx_runner, startup
from export.encoders import CODEC_ENCODER, SPEAKER_ENCODER, configured
from export.forms.graph import Runtime
from export.forms.onnx_form import ONNX
from export.forms.python_form import PYTHON as PYTHON_FORM
from export.forms.tensorrt_form import tensorrt_form
from export.tensorrt.process import TensorRtSettings
from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.voices import encoders

REPOSITORY = Path(__file__).parents[3] / "model_repository"
CONFIGS = sorted(path for name in ("qwen3_tts", "code2wav") for path in (REPOSITORY / name).rglob("*.pbtxt"))
TENSORRT = REPOSITORY / contract.MODEL_NAME / "config.pbtxt"
ONNXRUNTIME = REPOSITORY / contract.MODEL_NAME / "configs" / "onnxruntime.pbtxt"
PYTHON = REPOSITORY / contract.MODEL_NAME / "configs" / "python.pbtxt"

PLAN_FORM = tensorrt_form(TensorRtSettings())


def parse(path: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


def tensors(declared: list[model_config_pb2.ModelInput]) -> dict[str, tuple[str, list[int]]]:
    return {
        tensor.name: (model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_"), list(tensor.dims))
        for tensor in declared
    }


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_config_is_literal_and_named_after_its_folder(path: Path) -> None:
    config = parse(path)
    assert config.name == path.relative_to(REPOSITORY).parts[0]
    assert config.backend


@pytest.mark.parametrize("path", [TENSORRT, ONNXRUNTIME, PYTHON], ids=lambda path: path.stem)
def test_code2wav_tensors_and_batching(path: Path) -> None:
    config = parse(path)
    places = ("INT32", [contract.PLACES_SIZE])
    assert tensors(config.input) == {contract.CODES: ("INT32", [-1, 16]), contract.PLACES: places}
    # TensorRT has no INT16.
    assert tensors(config.output) == {contract.PCM: ("INT32" if path == TENSORRT else "INT16", [-1])}
    assert config.max_batch_size == contract.MAX_BATCH
    # The Python backend would run merged requests one after the other.
    assert config.HasField("dynamic_batching") == (path == TENSORRT)


def test_only_requests_of_equal_shapes_are_merged() -> None:
    """Triton compares the shapes of variable inputs only; a backend fails a batch as a whole."""
    for tensor in parse(TENSORRT).input:
        assert not tensor.allow_ragged_batch
        assert (-1 in tensor.dims) == (tensor.name != contract.PLACES)


def test_each_code2wav_names_its_backend_and_what_runs_its_file() -> None:
    tensorrt, onnxruntime, python = parse(TENSORRT), parse(ONNXRUNTIME), parse(PYTHON)
    assert (tensorrt.backend, tensorrt.default_model_filename) == ("tensorrt", PLAN_FORM.filename)
    # The Python backend loads model.py.
    for config in (onnxruntime, python):
        assert (config.backend, config.default_model_filename) == ("python", "")
    assert onnxruntime.parameters["executor"].string_value == executors.ONNX_RUNTIME
    assert python.parameters["executor"].string_value == "kernels" != executors.ONNX_RUNTIME
    assert (ONNX.filename, PYTHON_FORM.filename) == (onnx_runner.MODEL_FILE, startup.MODEL_FILE)
    assert onnx_runner.FEW_THREADS in (1, 2), "the talker needs the other cores"


def test_configurations_with_rows_differ_only_in_the_expected_fields() -> None:
    onnxruntime, python = parse(ONNXRUNTIME), parse(PYTHON)
    [on_cpu], [on_gpu] = onnxruntime.instance_group, python.instance_group
    assert (on_cpu.Kind.Name(on_cpu.kind), on_gpu.Kind.Name(on_gpu.kind)) == ("KIND_CPU", "KIND_GPU")
    # Instances would not see each other's rows.
    assert (on_cpu.count, on_gpu.count) == (1, 1)
    for config in (onnxruntime, python):
        config.ClearField("instance_group")
        config.ClearField("parameters")
    assert onnxruntime == python


@pytest.mark.parametrize(
    ("runtime", "backend", "kind"),
    [
        (ONNX.encoders, "python", "KIND_CPU"),
        (PLAN_FORM.encoders, "tensorrt", "KIND_GPU"),
        (PYTHON_FORM.encoders, "python", "KIND_AUTO"),
    ],
    ids=["onnx", "tensorrt", "python"],
)
def test_encoder_configurations(runtime: Runtime, backend: str, kind: str) -> None:
    speaker, codec = (
        text_format.Parse(configured(encoder, runtime, f"{encoder.name}_large", 2048), model_config_pb2.ModelConfig())
        for encoder in (SPEAKER_ENCODER, CODEC_ENCODER)
    )
    assert tensors(speaker.input) == {encoders.MEL: ("FP32", [1, -1, 128])}
    assert tensors(speaker.output) == {encoders.X_VECTOR: ("FP32", [1, 2048])}
    assert tensors(codec.input) == {encoders.AUDIO: ("FP32", [1, -1, 1920]), encoders.NUM_SAMPLES: ("INT32", [1, 1])}
    assert tensors(codec.output) == {encoders.CODES: ("INT32", [1, -1, 16])}
    for name, config in (("speaker_encoder_large", speaker), ("codec_encoder_large", codec)):
        assert (config.name, config.backend) == (name, backend)
        # The Python backend loads model.py.
        assert config.default_model_filename == ("" if backend == "python" else runtime.filename)
        [group] = config.instance_group
        assert (group.Kind.Name(group.kind), group.count) == (kind, 1)
        # Not 1: Triton's backends require a variable batch dimension.
        assert config.max_batch_size == 0


def test_the_plan_has_one_instance() -> None:
    """Instances of a GPU share an engine, but their calls would overlap, and the order of a row's calls matters."""
    [group] = parse(TENSORRT).instance_group
    assert (group.count, list(group.profile)) == (1, [])


def test_the_plan_runs_without_cuda_graphs() -> None:
    """Triton captures all graphs on one execution context and, for TensorRT 8, moves their output buffers."""
    assert not parse(TENSORRT).optimization.HasField("cuda")


def test_batching_adds_no_delay() -> None:
    """The talker sends whole batches, which a queue delay or a preferred size would only delay."""
    batching = parse(TENSORRT).dynamic_batching
    assert (batching.max_queue_delay_microseconds, list(batching.preferred_batch_size)) == (0, [])
