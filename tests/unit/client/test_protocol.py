import json
import struct
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2

from qwen3_tts_client.protocol import (
    INPUTS,
    OUTPUTS,
    AudioChunk,
    End,
    Error,
    SpeechRequest,
    TextPiece,
    Usage,
    decode,
    encode,
    merged,
)
from tests.fakes.stub_server import final_response

CONFIG = Path(__file__).parents[3] / "model_repository/qwen3_tts/config.pbtxt"


def tensors(message: Any) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), raw)
        for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    }


def test_tensor_names_and_types_match_the_model_config() -> None:
    config = text_format.Parse(CONFIG.read_text(), model_config_pb2.ModelConfig())

    def declared(parts: Any) -> dict[str, str]:
        names = {part.name: model_config_pb2.DataType.Name(part.data_type) for part in parts}
        return {name: kind.removeprefix("TYPE_").replace("STRING", "BYTES") for name, kind in names.items()}

    assert declared(config.output) == OUTPUTS
    assert declared(config.input) == INPUTS
    # The text is optional too: voice operations have none.
    assert all(part.optional for part in config.input)
    assert config.model_transaction_policy.decoupled
    assert config.max_batch_size == 0


def test_every_request_field_is_an_input_tensor() -> None:
    assert {field.name for field in fields(SpeechRequest)} == set(INPUTS)


def test_encodes_only_the_given_fields() -> None:
    message = encode(SpeechRequest("Grüezi"), "model", "id-7")
    assert (message.model_name, message.id) == ("model", "id-7")
    assert message.parameters["triton_enable_empty_final_response"].bool_param
    assert tensors(message) == {"text": ("BYTES", [1], b"\x07\0\0\0Gr\xc3\xbcezi")}


def test_encodes_every_tensor_type() -> None:
    request = SpeechRequest("a", temperature=0.5, top_k=50, seed=-(2**63), ref_audio=np.array([0.25, -1], np.float32))
    assert tensors(encode(request)) == {
        "text": ("BYTES", [1], b"\1\0\0\0a"),
        "temperature": ("FP32", [1], struct.pack("<f", 0.5)),
        "top_k": ("INT32", [1], struct.pack("<i", 50)),
        "seed": ("INT64", [1], struct.pack("<q", -(2**63))),
        "ref_audio": ("FP32", [2], struct.pack("<ff", 0.25, -1)),
    }


@pytest.mark.parametrize(("field", "value"), [("seed", 2**63), ("top_k", 2**31), ("temperature", 1e39)])
def test_rejects_a_number_too_large_for_its_tensor(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field}: .* does not fit"):
        encode(SpeechRequest("a", **{field: value}))  # type: ignore[arg-type]


def test_encodes_the_sequence_parameters_of_a_text_piece() -> None:
    message = encode(SpeechRequest("a"), piece=TextPiece(9, start=True, end=False))
    assert message.parameters["sequence_id"].int64_param == 9
    assert message.parameters["sequence_start"].bool_param
    assert not message.parameters["sequence_end"].bool_param


def response(pcm: bytes = b"", rate: int | None = None, final: bool | None = None) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    if pcm:
        message.infer_response.outputs.add(name="waveform", datatype="INT16", shape=[len(pcm) // 2])
        message.infer_response.raw_output_contents.append(pcm)
    if rate is not None:
        message.infer_response.outputs.add(name="sample_rate", datatype="INT32", shape=[1])
        message.infer_response.raw_output_contents.append(struct.pack("<i", rate))
    if final is not None:
        message.infer_response.parameters["triton_final_response"].bool_param = final
    return message


def test_decodes_audio_with_the_sample_rate_on_the_first_response() -> None:
    (first,) = decode(response(b"\1\0\xff\xff", rate=24_000, final=False))
    assert isinstance(first, AudioChunk)
    assert first.pcm.tolist() == [1, -1]
    assert first.sample_rate == 24_000
    (second,) = decode(response(b"\2\0", final=False))
    assert isinstance(second, AudioChunk)
    assert second.sample_rate is None


def test_decodes_the_end_with_or_without_audio() -> None:
    assert list(decode(response(final=True))) == [End()]
    assert [type(event) for event in decode(response(b"\1\0", final=True))] == [AudioChunk, End]


def test_decodes_how_an_utterance_ended() -> None:
    assert list(decode(final_response("id", usage=[9, 5, 20, 240]))) == [End("id", "stop", Usage(9, 5, 20, 240))]


def test_decodes_words_beside_audio_and_at_the_end() -> None:
    begun, over = {"index": 0, "word": "né,", "first": 0, "last": 2, "start": 0}, {"index": 0, "end": 1920}
    message = response(b"\1\0", final=False)
    add_words(message, begun, over)
    (chunk,) = decode(message)
    assert isinstance(chunk, AudioChunk)
    assert chunk.words == (begun, over)
    last = final_response(usage=[9, 5, 20, 240])
    add_words(last, over)
    last.infer_response.outputs.add(name="spoken_share", datatype="FP32", shape=[1])
    last.infer_response.raw_output_contents.append(struct.pack("<f", 0.75))
    assert list(decode(last)) == [End("", "stop", Usage(9, 5, 20, 240), (over,), 0.75)]
    assert merged([begun, over]) == [begun | over]


def add_words(message: Any, *words: dict[str, Any]) -> None:
    encoded = [json.dumps(word).encode() for word in words]
    message.infer_response.outputs.add(name="words", datatype="BYTES", shape=[len(words)])
    content = b"".join(struct.pack("<I", len(word)) + word for word in encoded)
    message.infer_response.raw_output_contents.append(content)


def test_an_empty_response_decodes_to_no_events() -> None:
    assert list(decode(response(final=False))) == []


def test_an_error_response_decodes_to_the_error_only() -> None:
    message = response(final=True)
    message.error_message = "text: '': must not be empty"
    assert list(decode(message)) == [Error("text: '': must not be empty")]


def test_a_waveform_of_the_wrong_type_decodes_to_an_error() -> None:
    message = response(b"\0\0\0\0")
    message.infer_response.outputs[0].datatype = "FP32"
    (error,) = decode(message)
    assert isinstance(error, Error)
    assert "waveform is FP32" in error.message
