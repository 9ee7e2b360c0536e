"""Voice operations read their stream to its end: Triton 2.51 keeps a model whose caller leaves at an error."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tritonclient.grpc import service_pb2

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import SpeechRequest, encode
from qwen3_tts_client.server import Server
from qwen3_tts_client.voices import operate
from qwen3_tts_gateway.backend import TritonServer, _operate

DELETE = SpeechRequest("", operation="delete_voice", voice="anna")


class Stub:
    """Answers with an error, then closes the stream."""

    def __init__(self) -> None:
        self.has_closed = False

    def responses(self) -> Iterator[service_pb2.ModelStreamInferResponse]:
        yield service_pb2.ModelStreamInferResponse(error_message="INVALID_ARG: voice: 'anna': unknown")
        self.has_closed = True


def test_a_failed_operation_is_read_to_the_end_of_its_stream() -> None:
    stub = Stub()
    calls = SimpleNamespace(ModelStreamInfer=lambda requests, timeout: stub.responses())
    server = cast(Server, SimpleNamespace(stub=calls, model_name="qwen3_tts"))
    with pytest.raises(SpeechError, match="anna"):
        operate(server, DELETE, 1.0)
    assert stub.has_closed


def test_the_gateway_reads_it_to_its_end_too() -> None:
    stub = Stub()

    async def infer(requests: Any, timeout: float) -> AsyncIterator[service_pb2.ModelStreamInferResponse]:
        for response in stub.responses():
            yield response

    server = cast(TritonServer, SimpleNamespace(stub=SimpleNamespace(ModelStreamInfer=infer)))
    with pytest.raises(SpeechError, match="anna"):
        asyncio.run(_operate(server, encode(DELETE, "qwen3_tts"), 1.0))
    assert stub.has_closed
