"""Every config.pbtxt is literal and loadable, and matches the code's names, types and limits."""

import json
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2

from export.encoders import CODEC_ENCODER, SPEAKER_ENCODER, configured
from export.forms.graph import Runtime
from export.forms.onnx_form import ONNX, plan_profiles
from export.forms.python_form import PYTHON as PYTHON_FORM
from export.forms.tensorrt_form import tensorrt_form
from export.tensorrt.process import TensorRtSettings
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig, SpeechTokenizerConfig
from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.voices import encoders
from scripts.embedded.backends.shared.merged_runs import limits
from scripts.synthetic.configs import speech_tokenizer_config

REPOSITORY = Path(__file__).parents[3] / "model_repository"
CONFIGS = sorted(path for name in ("qwen3_tts", "code2wav") for path in (REPOSITORY / name).rglob("*.pbtxt"))
TENSORRT = REPOSITORY / contract.MODEL_NAME / "config.pbtxt"
ONNXRUNTIME = REPOSITORY / contract.MODEL_NAME / "configs" / "onnxruntime.pbtxt"
PYTHON = REPOSITORY / contract.MODEL_NAME / "configs" / "python.pbtxt"

PLAN_FORM = tensorrt_form(TensorRtSettings())


def released_codec() -> CodecDecoderConfig:
    return SpeechTokenizerConfig.model_validate(speech_tokenizer_config("1.7b")).decoder_config


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
    state = (ONNX if path == ONNXRUNTIME else PLAN_FORM).state_dtype
    inputs = {
        contract.CODES: ("INT32", [-1, 16]),
        contract.STATE: (state, [-1]),
        contract.HISTORY: ("INT32", [1]),
    }
    outputs = {contract.WAVEFORM: ("FP32", [-1]), contract.STATE_OUT: (state, [-1])}
    if path == PYTHON:
        inputs |= {contract.PLACES: ("INT32", [3])}
        outputs |= {contract.PCM: ("INT16", [-1])}
    assert tensors(config.input) == inputs
    assert tensors(config.output) == outputs
    assert config.max_batch_size == contract.MAX_BATCH
    # The Python backend would run merged requests one after the other.
    assert config.HasField("dynamic_batching") == (path != PYTHON)


@pytest.mark.parametrize("path", [TENSORRT, ONNXRUNTIME], ids=lambda path: path.stem)
def test_only_requests_of_equal_shapes_are_merged(path: Path) -> None:
    """Triton compares the shapes of variable inputs only; a backend fails a batch as a whole."""
    for tensor in parse(path).input:
        assert not tensor.allow_ragged_batch
        assert (-1 in tensor.dims) == (tensor.name != contract.HISTORY)


def test_each_code2wav_names_its_backend_and_file() -> None:
    tensorrt, onnxruntime = parse(TENSORRT), parse(ONNXRUNTIME)
    assert (tensorrt.backend, tensorrt.default_model_filename) == ("tensorrt", PLAN_FORM.filename)
    assert (onnxruntime.backend, onnxruntime.default_model_filename) == ("onnxruntime", ONNX.filename)
    assert int(onnxruntime.parameters["intra_op_thread_count"].string_value) in (1, 2)


def test_python_form_accepts_inputs_in_gpu_memory() -> None:
    python = parse(PYTHON)
    assert python.backend == "python"
    assert python.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value == "no"


def test_configurations_of_code2wav_differ_only_in_the_expected_fields() -> None:
    tensorrt, onnxruntime, python = parse(TENSORRT), parse(ONNXRUNTIME), parse(PYTHON)
    for config in (tensorrt, onnxruntime, python):
        for field in ("backend", "default_model_filename", "instance_group", "parameters", "optimization"):
            config.ClearField(field)
        for tensor in (*config.input, *config.output):
            if tensor.name in (contract.STATE, contract.STATE_OUT):
                tensor.ClearField("data_type")
    by_name = {tensor.name: tensor for tensor in (*python.input, *python.output)}
    for name in (contract.STATE, contract.HISTORY):
        by_name[name].ClearField("optional")
    python.input.remove(by_name[contract.PLACES])
    python.output.remove(by_name[contract.PCM])
    python.dynamic_batching.SetInParent()
    assert tensorrt == onnxruntime == python


@pytest.mark.parametrize(
    ("runtime", "backend", "kind"),
    [
        (ONNX.encoders, "onnxruntime", "KIND_CPU"),
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


@pytest.mark.parametrize("path", [TENSORRT, ONNXRUNTIME], ids=lambda path: path.stem)
def test_value_ranges_match_the_codec(path: Path) -> None:
    config, codec = (
        json.loads(json_format.MessageToJson(parse(path), preserving_proto_field_name=True)),
        released_codec(),
    )
    assert limits(config, contract.CODES) == (0, codec.codebook_size - 1)
    assert limits(config, contract.HISTORY) == (0, contract.max_history(codec))


def test_instance_group_lists_every_profile_of_the_plan() -> None:
    [group] = parse(TENSORRT).instance_group
    assert list(group.profile) == [str(i) for i in range(len(plan_profiles(1)))]


def test_the_plan_runs_without_cuda_graphs() -> None:
    """Triton captures all graphs on one execution context and, for TensorRT 8, moves their output buffers."""
    assert not parse(TENSORRT).optimization.HasField("cuda")


def test_batching_adds_no_delay() -> None:
    """The talker sends whole batches, which a queue delay or a preferred size would only delay."""
    batching = parse(TENSORRT).dynamic_batching
    assert (batching.max_queue_delay_microseconds, list(batching.preferred_batch_size)) == (0, [])
