"""Every config.pbtxt is literal and loadable, and code2wav's agree with the code on names, types and limits."""

import json
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2

from export.encoders import CODEC_ENCODER, SPEAKER_ENCODER, configured
from export.forms.graph import Runtime
from export.forms.onnx_form import ONNX, plan_profiles
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
def test_literal_and_named_after_the_folder(path: Path) -> None:
    config = parse(path)
    assert config.name == path.relative_to(REPOSITORY).parts[0]
    assert config.backend


@pytest.mark.parametrize("path", [TENSORRT, ONNXRUNTIME, PYTHON], ids=lambda path: path.stem)
def test_code2wav(path: Path) -> None:
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
    """Triton compares the shapes of inputs that vary, and of no others; a backend fails a batch as a whole."""
    for tensor in parse(path).input:
        assert not tensor.allow_ragged_batch
        assert (-1 in tensor.dims) == (tensor.name != contract.HISTORY)


def test_each_code2wav_names_its_backend_and_file() -> None:
    tensorrt, onnxruntime = parse(TENSORRT), parse(ONNXRUNTIME)
    assert (tensorrt.backend, tensorrt.default_model_filename) == ("tensorrt", PLAN_FORM.filename)
    assert (onnxruntime.backend, onnxruntime.default_model_filename) == ("onnxruntime", ONNX.filename)
    assert int(onnxruntime.parameters["intra_op_thread_count"].string_value) in (1, 2)


def test_python_form_takes_states_where_they_are() -> None:
    python = parse(PYTHON)
    assert python.backend == "python"
    assert python.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value == "no"


def test_configurations_of_a_model_differ_only_where_they_must() -> None:
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


@pytest.mark.parametrize("runtime", [ONNX.encoders, PLAN_FORM.encoders], ids=lambda runtime: runtime.name)
def test_encoders(runtime: Runtime) -> None:
    speaker, codec = (
        text_format.Parse(configured(encoder, runtime, f"{encoder.name}_large", 2048), model_config_pb2.ModelConfig())
        for encoder in (SPEAKER_ENCODER, CODEC_ENCODER)
    )
    assert tensors(speaker.input) == {encoders.MEL: ("FP32", [1, -1, 128])}
    assert tensors(speaker.output) == {encoders.X_VECTOR: ("FP32", [1, 2048])}
    assert tensors(codec.input) == {encoders.AUDIO: ("FP32", [1, -1, 1920]), encoders.NUM_SAMPLES: ("INT32", [1, 1])}
    assert tensors(codec.output) == {encoders.CODES: ("INT32", [1, -1, 16])}
    on_gpu = runtime.name == "tensorrt"
    for name, config in (("speaker_encoder_large", speaker), ("codec_encoder_large", codec)):
        assert (config.name, config.default_model_filename) == (name, runtime.filename)
        assert config.backend == ("tensorrt" if on_gpu else "onnxruntime")
        kinds = config.instance_group[0]
        assert kinds.kind == (kinds.KIND_GPU if on_gpu else kinds.KIND_CPU)
        # Not a batch of one: Triton's own backends want a batch to be a dimension that varies.
        assert config.max_batch_size == 0


@pytest.mark.parametrize("path", [TENSORRT, ONNXRUNTIME], ids=lambda path: path.stem)
def test_ranges_of_values_are_those_of_the_codec(path: Path) -> None:
    config, codec = (
        json.loads(json_format.MessageToJson(parse(path), preserving_proto_field_name=True)),
        released_codec(),
    )
    assert limits(config, contract.CODES) == (0, codec.codebook_size - 1)
    assert limits(config, contract.HISTORY) == (0, contract.max_history(codec))


def test_every_profile_of_the_plan_is_served() -> None:
    [group] = parse(TENSORRT).instance_group
    assert list(group.profile) == [str(i) for i in range(len(plan_profiles(1)))]


def test_the_plan_runs_without_cuda_graphs() -> None:
    """Triton records them all on one execution context, and for TensorRT 8 moves what they write to."""
    assert not parse(TENSORRT).optimization.HasField("cuda")


def test_requests_wait_for_no_others() -> None:
    """The talker brings whole batches: a queue delay or a preferred size would only hold them up."""
    batching = parse(TENSORRT).dynamic_batching
    assert (batching.max_queue_delay_microseconds, list(batching.preferred_batch_size)) == (0, [])
