"""One utterance on one gRPC stream, for synchronous callers."""

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
    responses: Responses | None = None,
) -> Generator[tuple[int, AudioChunk], None, None]:
    """Yields (arrival, chunk), the arrival in perf_counter_ns. Raises SpeechError.

    Several requests are text pieces of one utterance; `requests` may block until the next piece is available.
    Closing the generator early cancels the stream. A caller that passes `responses` finds the end there.
    """
    call = stub.ModelStreamInfer(iter(requests), timeout=timeouts.stream_s)
    inbox: _Inbox = queue.SimpleQueue()
    # This thread timestamps arrivals, so that a caller busy playing a chunk does not delay the next one.
    threading.Thread(target=_receive, args=(call, inbox), daemon=True).start()
    responses = responses or Responses()
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
    """Lets the server close the stream (see CLOSING_SECONDS)."""
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
