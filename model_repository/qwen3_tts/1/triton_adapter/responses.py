"""Sends responses, and notices cancellation."""

import itertools
import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from qwen3_tts_engine import audio
from qwen3_tts_engine.request import Cancelled, Outcome, RequestError

log = logging.getLogger("qwen3_tts")

WAVEFORM, SAMPLE_RATE, VOICES = "waveform", "sample_rate", "voices"
# Names, not values: while Triton completes the configuration, its module has no TritonError yet.
STATUS = {
    Outcome.INVALID: "INVALID_ARG",
    Outcome.UNAVAILABLE: "UNAVAILABLE",
    Outcome.CANCELLED: "CANCELLED",
    Outcome.ERROR: "INTERNAL",
}
# At most this many cancel checks (a message to Triton and back, 0.1 ms) in each period, and one of a stream in each
# interval.
CANCEL_CHECKS = 16
CANCEL_PERIOD = 0.004
CANCEL_INTERVAL = 0.02
# From the moment at which a stream's cancel is seen to its FINAL. Triton's gRPC front end releases such a stream on the
# first event behind FINAL, and touches it again on the second: there must be no write of it left on its way by then.
CANCEL_SETTLE = 0.25


class ResponseSink:
    """Sends one request's responses (dispatcher.Caller); sends FINAL exactly once.

    Audio that comes behind an error is dropped; behind an end without error it would be lost.
    """

    def __init__(self, sender: Any, watcher: "CancelWatcher") -> None:
        # The client's request id may be empty or used twice; it never becomes a key.
        self.key = uuid.uuid4().hex
        self.arrived = time.perf_counter()
        self._sender: Any | None = sender
        self._watcher = watcher
        self._lock = threading.Lock()
        self._started = self._completed = False

    def watch(self) -> None:
        """Notice when the client goes; for a request that was not refused at once."""
        with self._lock:
            if self._sender is not None:
                self._watcher.watch(self)

    def send(self, pcm: np.ndarray) -> None:
        with self._lock:
            assert not self._completed, "audio behind the end of a stream"
            if self._sender is None:
                return
            outputs = [pb_utils.Tensor(WAVEFORM, pcm)]
            if not self._started:
                outputs.append(pb_utils.Tensor(SAMPLE_RATE, np.array([audio.SAMPLE_RATE], np.int32)))
            self._started = True
            self._sender.send(pb_utils.InferenceResponse(outputs))

    def reply(self, voices: list[str]) -> None:
        """Answer an operation on voices, whole."""
        with self._lock:
            if self._sender is not None:
                encoded = np.array([voice.encode() for voice in voices], np.object_)
                self._sender.send(pb_utils.InferenceResponse([pb_utils.Tensor(VOICES, encoded)]))
        self.finish(None)

    def finish(self, error: RequestError | None) -> None:
        with self._lock:
            # Dropped, not only marked: the model cannot be unloaded while anyone holds a response sender.
            sender, self._sender = self._sender, None
            if sender is None:
                return
            self._completed = error is None
            self._watcher.forget(self)
            if isinstance(error, Cancelled) or (self._started and sender.is_cancelled()):
                self._watcher.settle(partial(_send_final, sender, error))
            else:
                _send_final(sender, error)

    def is_cancelled(self) -> bool:
        """Whether the client has gone. Under the lock: asking about a stream that has ended crashes Triton."""
        with self._lock:
            return self._sender is not None and self._sender.is_cancelled()


class CancelWatcher:
    """Asks Triton, stream by stream, whether the client has gone, at a bounded rate and only while streams live.

    A stream is first asked about CANCEL_INTERVAL after it was accepted: one that ends at once costs no message. The
    engine lets go of a cancelled stream at once; its FINAL is sent CANCEL_SETTLE later.

    `expire` is called once a round; it ends sequences that have been idle for too long.
    """

    def __init__(self, cancel: Callable[[str], None], expire: Callable[[], None]) -> None:
        self._cancel = cancel
        self._expire = expire
        # When each is due, in monotonic seconds: the stream that was asked about longest ago comes first.
        self._due: dict[ResponseSink, float] = {}
        # What ends cancelled streams, and when, in monotonic seconds.
        self._ends: deque[tuple[float, Callable[[], None]]] = deque()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cancel", daemon=True)
        self._thread.start()

    def watch(self, sink: ResponseSink) -> None:
        with self._changed:
            self._due[sink] = time.monotonic() + CANCEL_INTERVAL
            self._changed.notify()

    def forget(self, sink: ResponseSink) -> None:
        with self._changed:
            self._due.pop(sink, None)

    def settle(self, end: Callable[[], None]) -> None:
        """Call `end` in CANCEL_SETTLE."""
        with self._changed:
            self._ends.append((time.monotonic() + CANCEL_SETTLE, end))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            self._changed.notify()
        self._thread.join()
        self._end_settled(math.inf)

    def _run(self) -> None:
        while not self._closed.wait(CANCEL_PERIOD):
            self._expire()
            self._end_settled(time.monotonic())
            for sink in self._next():
                if sink.is_cancelled():
                    self._cancel(sink.key)

    def _next(self) -> list[ResponseSink]:
        """The streams whose turn it is; waits while there are none."""
        with self._changed:
            while not self._due and not self._ends and not self._closed.is_set():
                self._changed.wait()
            now = time.monotonic()
            turn = [sink for sink, due in itertools.islice(self._due.items(), CANCEL_CHECKS) if due <= now]
            for sink in turn:
                del self._due[sink]
                self._due[sink] = now + CANCEL_INTERVAL
            return turn

    def _end_settled(self, now: float) -> None:
        # One thread takes from the front.
        while self._ends and self._ends[0][0] <= now:
            _, end = self._ends.popleft()
            try:
                end()
            except Exception:
                log.exception("a cancelled stream's end could not be sent")


def _send_final(sender: Any, error: RequestError | None) -> None:
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    if error is None:
        sender.send(flags=final)
    else:
        sender.send(pb_utils.InferenceResponse(error=_triton_error(error)), flags=final)


def _triton_error(error: RequestError) -> Any:
    # A gRPC stream carries an error's text alone, so the text names the code as well.
    code = STATUS[error.outcome]
    return pb_utils.TritonError(f"{code}: {error}", getattr(pb_utils.TritonError, code))
