"""One utterance on one gRPC stream, for a caller without an event loop."""

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Iterable
from typing import TypeAlias

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.errors import SpeechError, from_rpc
from qwen3_tts_client.protocol import AudioChunk
from qwen3_tts_client.stream import CLOSING_SECONDS, Responses, Timeouts

_Arrival = tuple[int, service_pb2.ModelStreamInferResponse]
_Inbox: TypeAlias = "queue.SimpleQueue[_Arrival | grpc.RpcError | None]"


def speak(
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
    requests: Iterable[service_pb2.ModelInferRequest],
    timeouts: Timeouts,
) -> Generator[tuple[int, AudioChunk], None, None]:
    """Yields (arrival, chunk), the arrival in perf_counter_ns. Raises SpeechError.

    Several requests are the pieces of one utterance; `requests` may block until its next piece is there.
    Closing the generator early cancels the stream.
    """
    call = stub.ModelStreamInfer(iter(requests), timeout=timeouts.stream_s)
    inbox: _Inbox = queue.SimpleQueue()
    # Arrivals are stamped here, so that a caller busy with playing a chunk does not delay the next stamp.
    threading.Thread(target=_receive, args=(call, inbox), daemon=True).start()
    responses = Responses()
    try:
        while (item := _next(inbox, timeouts.chunk_s)) is not None:
            arrival_ns, response = item
            for chunk in responses.chunks(response):
                yield arrival_ns, chunk
        responses.close()
    except SpeechError:
        _drain(inbox)
        raise
    finally:
        call.cancel()


def _drain(inbox: _Inbox) -> None:
    """Let the server close the stream (see qwen3_tts_client.stream)."""
    deadline = time.monotonic() + CLOSING_SECONDS
    with contextlib.suppress(queue.Empty):
        while isinstance(inbox.get(timeout=max(0.0, deadline - time.monotonic())), tuple):
            pass


def _receive(call: Iterable[service_pb2.ModelStreamInferResponse], inbox: _Inbox) -> None:
    try:
        for response in call:
            inbox.put((time.perf_counter_ns(), response))
        inbox.put(None)
    except grpc.RpcError as error:
        inbox.put(error)


def _next(inbox: _Inbox, limit_s: float) -> _Arrival | None:
    try:
        item = inbox.get(timeout=limit_s)
    except queue.Empty:
        raise SpeechError("timeout", f"no response for {limit_s:g} s") from None
    if isinstance(item, grpc.RpcError):
        raise from_rpc(item)
    return item
