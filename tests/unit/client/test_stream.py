"""Decoding the responses of one gRPC stream."""

import pytest
from tritonclient.grpc import service_pb2

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import MORE_TEXT
from qwen3_tts_client.stream import Responses

LATE = service_pb2.ModelStreamInferResponse(error_message="INVALID_ARG: sequence_id: 7: not open")


def final(request_id: str) -> service_pb2.ModelStreamInferResponse:
    response = service_pb2.ModelStreamInferResponse()
    response.infer_response.id = request_id
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return response


def test_ignores_the_refusal_of_text_sent_after_the_final_response() -> None:
    responses = Responses()
    for response in (final(MORE_TEXT), final("hello"), LATE):
        assert list(responses.chunks(response)) == []
    responses.close()


def test_raises_when_text_is_refused_before_the_final_response() -> None:
    responses = Responses()
    assert list(responses.chunks(final(MORE_TEXT))) == []
    with pytest.raises(SpeechError, match="not open"):
        list(responses.chunks(LATE))
    with pytest.raises(SpeechError, match="without a final response"):
        responses.close()
