"""One utterance on one gRPC stream, for an event loop that carries hundreds of them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass

import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.errors import SpeechError, from_message, from_rpc
from qwen3_tts_client.protocol import MORE_TEXT, AudioChunk, End, Error, decode

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Each channel its own connection: streams on different channels do not share one HTTP/2 window.
    ("grpc.use_local_subchannel_pool", 1),
)
# A stream that ended with an error is left to the server to close, for so long. Triton 2.51 may keep the model of one
# that is cancelled just then, and when it is stopped wait for that model until its exit timeout.
CLOSING_SECONDS = 1.0


@dataclass(frozen=True)
class Timeouts:
    stream_s: float = 300.0  # for the whole stream
    chunk_s: float = 60.0  # from one response to the next


class Responses:
    """The responses of one stream: its audio, its errors, and whether its end was seen."""

    def __init__(self) -> None:
        self._ended = False

    def chunks(self, response: service_pb2.ModelStreamInferResponse) -> Iterator[AudioChunk]:
        """Raises SpeechError for an error response; behind the utterance's end it is about text that came too late."""
        for event in decode(response):
            match event:
                case AudioChunk():
                    yield event
                case Error(message) if not self._ended:
                    raise from_message(message)
                case End(request_id):
                    self._ended |= request_id != MORE_TEXT

    def close(self) -> None:
        """Called when the server has closed the stream. Raises SpeechError where it did so too early."""
        if not self._ended:
            raise SpeechError("error", "the server closed the stream without a final response")


class Watchdog:
    """Calls `bite` once when it has not been fed for `limit_s`."""

    def __init__(self, bite: Callable[[], object], limit_s: float) -> None:
        self.bitten = False
        self._bite = bite
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._fed_s = self._loop.time()
        self._timer = self._loop.call_later(limit_s, self._check)

    def feed(self) -> None:
        self._fed_s = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        # The timer is moved when it fires, not at each feed: thousands of chunks a second feed it.
        left_s = self._fed_s + self._limit_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check)
        else:
            self.bitten = True
            self._bite()


async def speak(
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
    requests: Iterable[service_pb2.ModelInferRequest],
    timeouts: Timeouts,
) -> AsyncGenerator[tuple[int, AudioChunk], None]:
    """Yields (arrival, chunk), the arrival in perf_counter_ns. Raises SpeechError.

    Several requests are the pieces of one utterance. Closing the generator early cancels the stream.
    """
    call = stub.ModelStreamInfer(requests, timeout=timeouts.stream_s)
    watchdog = Watchdog(call.cancel, timeouts.chunk_s)
    responses = Responses()
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
        if watchdog.bitten:
            raise SpeechError("timeout", f"no response for {timeouts.chunk_s:g} s") from None
        raise
    finally:
        watchdog.stop()
        call.cancel()
