"""One utterance on one gRPC stream, for an event loop with hundreds of streams."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.errors import SpeechError, from_message, from_rpc
from qwen3_tts_client.protocol import MORE_TEXT, AudioChunk, End, Error, decode

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # One connection per channel: streams on different channels do not share an HTTP/2 window.
    ("grpc.use_local_subchannel_pool", 1),
)
# How long the server gets to close a stream after an error. If the client cancels at that moment, Triton 2.51 can keep
# a reference to the model, and its shutdown then waits for that model until the exit timeout.
CLOSING_SECONDS = 1.0


@dataclass(frozen=True)
class Timeouts:
    stream_s: float = 300.0  # for the whole stream
    chunk_s: float = 60.0  # from one response to the next


class Responses:
    """Decodes the responses of one stream and tracks whether its end was received."""

    def __init__(self) -> None:
        self.end: End | None = None  # of the utterance

    def chunks(self, response: service_pb2.ModelStreamInferResponse) -> Iterator[AudioChunk]:
        """Raises SpeechError for an error response; after the utterance's end it concerns late text and is ignored."""
        for event in decode(response):
            match event:
                case AudioChunk():
                    yield event
                case Error(message) if self.end is None:
                    raise from_message(message)
                case End(request_id) if request_id != MORE_TEXT:
                    self.end = event

    def close(self) -> None:
        """Called when the server has closed the stream. Raises SpeechError if no final response came."""
        if self.end is None:
            raise SpeechError("error", "the server closed the stream without a final response")


class Watchdog:
    """Calls `on_timeout` once when it has not been fed for `limit_s`."""

    def __init__(self, on_timeout: Callable[[], object], limit_s: float) -> None:
        self.expired = False
        self._on_timeout = on_timeout
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._fed_s = self._loop.time()
        self._timer = self._loop.call_later(limit_s, self._check)

    def feed(self) -> None:
        self._fed_s = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        # Rescheduled when it fires, not at each feed: thousands of chunks per second feed it.
        left_s = self._fed_s + self._limit_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check)
        else:
            self.expired = True
            self._on_timeout()


async def speak(
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
    requests: Iterable[service_pb2.ModelInferRequest] | AsyncIterable[service_pb2.ModelInferRequest],
    timeouts: Timeouts,
    responses: Responses | None = None,
    metadata: Sequence[tuple[str, str]] = (),
) -> AsyncGenerator[tuple[int, AudioChunk], None]:
    """Yields (arrival, chunk), the arrival in perf_counter_ns. Raises SpeechError.

    Several requests are text pieces of one utterance. Closing the generator early cancels the stream. A caller that
    passes `responses` finds the end there.
    """
    call = stub.ModelStreamInfer(requests, timeout=timeouts.stream_s, metadata=metadata)
    watchdog = Watchdog(call.cancel, timeouts.chunk_s)
    responses = responses or Responses()
    try:
        async for response in call:
            arrival_ns = time.perf_counter_ns()
            watchdog.feed()
            for chunk in responses.chunks(response):
                yield arrival_ns, chunk
        responses.close()
    except SpeechError:
        with contextlib.suppress(TimeoutError, grpc.RpcError):
            async with asyncio.timeout(CLOSING_SECONDS):
                async for _ in call:
                    pass
        raise
    except grpc.RpcError as error:
        raise from_rpc(error) from None
    except asyncio.CancelledError:
        if watchdog.expired:
            raise SpeechError("timeout", f"no response for {timeouts.chunk_s:g} s") from None
        raise
    finally:
        watchdog.stop()
        call.cancel()
