"""Streams on the Triton servers: choice of a server, one retry before the first audio, cancellation."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeAlias, TypeVar

import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.errors import SpeechError, from_rpc
from qwen3_tts_client.protocol import AudioChunk, End, SpeechRequest, encode
from qwen3_tts_client.stream import CHANNEL_OPTIONS, Responses, Timeouts, speak
from qwen3_tts_client.voices import voices_of

Message: TypeAlias = service_pb2.ModelInferRequest
# The messages of one attempt; a retry takes them again from the start.
Messages = Callable[[], Iterable[Message] | AsyncIterator[Message]]
Metadata = tuple[tuple[str, str], ...]
OPTIONS = (
    *CHANNEL_OPTIONS,
    # The default grows to two minutes, in which a restarted server gets no requests.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Keeps a stream's window at 64 KiB, 1.4 s of speech. Probing raises it to 6 MiB, which a slow reader then holds.
    ("grpc.http2.bdp_probe", 0),
)
ELSEWHERE = ("disconnected", "unavailable")
RPC_SECONDS = 5.0
AVOID_SECONDS = 1.0
T = TypeVar("T")


class TritonServer:
    def __init__(self, url: str, connections: int) -> None:
        self.url = url
        self.streams = 0
        self.avoid_until_s = 0.0
        self._channels = [grpc.aio.insecure_channel(url, options=OPTIONS) for _ in range(connections)]
        self._stubs = itertools.cycle([service_pb2_grpc.GRPCInferenceServiceStub(c) for c in self._channels])

    @property
    def stub(self) -> service_pb2_grpc.GRPCInferenceServiceStub:
        return next(self._stubs)

    async def is_ready(self, model: str) -> bool:
        try:
            answer = await self.stub.ModelReady(service_pb2.ModelReadyRequest(name=model), timeout=RPC_SECONDS)
        except grpc.RpcError:
            return False
        return bool(answer.ready)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


class Speech:
    """An utterance that has begun: its first audio is here, or its end without any."""

    def __init__(self, first: AudioChunk | None, rest: AsyncGenerator[AudioChunk, None], responses: Responses) -> None:
        self._first = first
        self._rest = rest
        self._responses = responses
        self.samples = 0

    @property
    def end(self) -> End:
        """Meaningful once the chunks are exhausted."""
        return self._responses.end or End()

    async def chunks(self) -> AsyncGenerator[AudioChunk, None]:
        """Raises SpeechError. Closing the generator early cancels the stream."""
        async with aclosing(self._rest):
            if self._first is None:
                return
            self.samples += len(self._first.pcm)
            yield self._first
            async for chunk in self._rest:
                self.samples += len(chunk.pcm)
                yield chunk

    async def close(self) -> None:
        await self._rest.aclose()


class Backend:
    def __init__(self, urls: Iterable[str], connections: int, timeouts: Timeouts) -> None:
        self.servers = [TritonServer(url, connections) for url in urls]
        self._timeouts = timeouts
        self._turn = itertools.count()

    @property
    def streams(self) -> int:
        return sum(server.streams for server in self.servers)

    async def start(self, messages: Messages, metadata: Metadata = ()) -> Speech:
        """Returns once the first audio is there. Raises SpeechError."""
        return await self._try(lambda server: self._begin(server, messages, metadata))

    async def operate(self, request: SpeechRequest, model: str) -> list[dict[str, Any]]:
        """Returns the voices of a voice operation. Raises SpeechError."""
        message = encode(request, model)
        return await self._try(lambda server: _operate(server, message, self._timeouts.chunk_s))

    async def is_ready(self, model: str) -> bool:
        return any(await asyncio.gather(*(server.is_ready(model) for server in self.servers)))

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self.servers))

    async def _try(self, attempt: Callable[[TritonServer], Awaitable[T]]) -> T:
        """Tries another server once if the first is down or refuses; a single one again, since it may be a proxy."""
        server = self._choose()
        try:
            return await attempt(server)
        except SpeechError as error:
            if error.outcome not in ELSEWHERE:
                raise
            server.avoid_until_s = time.monotonic() + AVOID_SECONDS
            return await attempt(self._choose(server))

    def _choose(self, failed: TritonServer | None = None) -> TritonServer:
        """The server with the fewest streams of this gateway; in turn among equals."""
        now_s, turn = time.monotonic(), next(self._turn)
        count = len(self.servers)

        def rank(indexed: tuple[int, TritonServer]) -> tuple[bool, bool, int, int]:
            index, server = indexed
            return server is failed, server.avoid_until_s > now_s, server.streams, (index - turn) % count

        return min(enumerate(self.servers), key=rank)[1]

    async def _begin(self, server: TritonServer, messages: Messages, metadata: Metadata) -> Speech:
        responses = Responses()
        stream = self._counted(server, speak(server.stub, messages(), self._timeouts, responses, metadata))
        try:
            return Speech(await anext(stream, None), stream, responses)
        except BaseException:
            await stream.aclose()
            raise

    async def _counted(
        self, server: TritonServer, stream: AsyncGenerator[tuple[int, AudioChunk], None]
    ) -> AsyncGenerator[AudioChunk, None]:
        server.streams += 1
        try:
            async with aclosing(stream):
                async for _, chunk in stream:
                    yield chunk
        finally:
            server.streams -= 1


async def _operate(server: TritonServer, message: Message, timeout_s: float) -> list[dict[str, Any]]:
    try:
        # Read to its end also after an error (see stream.CLOSING_SECONDS).
        responses = [response async for response in server.stub.ModelStreamInfer([message], timeout=timeout_s)]
    except grpc.RpcError as error:
        raise from_rpc(error) from None
    return voices_of(responses)
