"""Benchmark targets: servers that turn a SpeechRequest into chunks of audio."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from qwen3_tts_client.bench.openai_speech import OpenAITarget
from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.protocol import MODEL_NAME, AudioChunk, SpeechRequest, encode
from qwen3_tts_client.stream import CHANNEL_OPTIONS, Responses, Timeouts, speak

# Enough that few streams share an HTTP/2 window, few enough that a worker process starts quickly.
CONNECTIONS = 32
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class TargetConfig:
    service_kind: str = "triton"  # or "openai"
    url: str = "localhost:8001"
    model_name: str = MODEL_NAME
    endpoint: str = "/v1/audio/speech"  # openai only
    extra_inputs: dict[str, Any] = field(default_factory=dict)  # openai only: further fields of the JSON body
    timeouts: Timeouts = field(default_factory=Timeouts)


class Target(Protocol):
    async def open(self) -> None:
        """Connects. Raises ClientError."""

    async def prepare(
        self, request: SpeechRequest, request_id: str, responses: Responses
    ) -> AsyncGenerator[tuple[int, AudioChunk], None]:
        """Does everything up to writing the request, which the generator does at its first step.

        `responses` has the end after the last chunk, where the service says how an utterance ended.
        """

    async def close(self) -> None: ...


def make_target(config: TargetConfig) -> Target:
    if config.service_kind == "openai":
        return OpenAITarget(config.url, config.endpoint, config.model_name, config.extra_inputs, config.timeouts)
    return TritonTarget(config.url, config.model_name, config.timeouts)


class TritonTarget:
    def __init__(self, url: str, model_name: str, timeouts: Timeouts) -> None:
        self._url = url
        self._model_name = model_name
        self._timeouts = timeouts

    async def open(self) -> None:
        self._channels = [grpc.aio.insecure_channel(self._url, options=CHANNEL_OPTIONS) for _ in range(CONNECTIONS)]
        self._stubs = itertools.cycle([service_pb2_grpc.GRPCInferenceServiceStub(c) for c in self._channels])
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.gather(*(channel.channel_ready() for channel in self._channels))
        except TimeoutError:
            raise ClientError(f"{self._url}: no connection within {CONNECT_TIMEOUT_S:g} s", ExitCode.SERVER) from None

    async def prepare(
        self, request: SpeechRequest, request_id: str, responses: Responses
    ) -> AsyncGenerator[tuple[int, AudioChunk], None]:
        return speak(next(self._stubs), [encode(request, self._model_name, request_id)], self._timeouts, responses)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
