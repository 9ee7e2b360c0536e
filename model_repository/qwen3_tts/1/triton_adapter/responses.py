"""Sends responses and detects cancellation."""

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from qwen3_tts_engine import audio
from qwen3_tts_engine.core.streams import Summary
from qwen3_tts_engine.request import Cancelled, Outcome, RequestError

log = logging.getLogger("qwen3_tts")

WAVEFORM, SAMPLE_RATE, VOICES, WORDS = "waveform", "sample_rate", "voices", "words"
FINISH_REASON, USAGE, SPOKEN_SHARE = "finish_reason", "usage", "spoken_share"
# Names, since pb_utils has no TritonError while Triton auto-completes the configuration.
STATUS = {
    Outcome.INVALID: "INVALID_ARG",
    Outcome.UNAVAILABLE: "UNAVAILABLE",
    Outcome.CANCELLED: "CANCELLED",
    Outcome.ERROR: "INTERNAL",
}
# Limits on cancel checks: CANCEL_CHECKS per period, and one per stream and interval. Each takes the locks of Triton's
# stream in another order than its own threads (docs/failures.md).
CANCEL_CHECKS = 4
CANCEL_PERIOD = 0.004
CANCEL_INTERVAL = 0.05
# Delay from detecting a stream's cancellation to its FINAL. Triton's gRPC front end releases such a stream on the first
# event after FINAL and accesses it again on the second: by then none of its writes may be in flight.
CANCEL_SETTLE = 0.25


_numbers = itertools.count(1)


class ResponseSink:
    """Sends one request's responses (core.streams.Caller); sends FINAL exactly once.

    Audio sent after an error is dropped; audio sent after a successful end is a bug.
    """

    def __init__(self, sender: Any, watcher: "CancelWatcher") -> None:
        # The client's request id may be empty or used twice; it never becomes a key.
        self.key = f"request {next(_numbers)}"
        self.arrived = time.perf_counter()
        self._sender: Any | None = sender
        self._watcher = watcher
        self._lock = threading.Lock()
        self._started = self._completed = False

    def watch(self) -> None:
        """Start watching for cancellation, unless the request has ended."""
        with self._lock:
            if self._sender is not None:
                self._watcher.watch(self)

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None:
        with self._lock:
            assert not self._completed, "audio after the end of a stream"
            if self._sender is None:
                return
            outputs = [pb_utils.Tensor(WAVEFORM, pcm)]
            if not self._started:
                outputs.append(pb_utils.Tensor(SAMPLE_RATE, np.array([audio.SAMPLE_RATE], np.int32)))
            if words:
                outputs.append(_strings(WORDS, words))
            self._started = True
            self._sender.send(pb_utils.InferenceResponse(outputs))

    def reply(self, voices: list[str]) -> None:
        """Send the result of a voice operation with FINAL."""
        self._end([_strings(VOICES, voices)])

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None:
        self._end(_outputs(summary) if summary else [], error)

    def _end(self, outputs: list[Any], error: RequestError | None = None) -> None:
        with self._lock:
            # Drop the reference: Triton cannot unload the model while a response sender is alive.
            sender, self._sender = self._sender, None
            if sender is None:
                return
            self._completed = error is None
            self._watcher.forget(self)
            if isinstance(error, Cancelled) or (self._started and sender.is_cancelled()):
                self._watcher.end_later(partial(_send_final, sender, outputs, error))
            else:
                _send_final(sender, outputs, error)

    def is_cancelled(self) -> bool:
        """Whether the client has gone. Takes the lock, since a check after FINAL crashes Triton."""
        with self._lock:
            return self._sender is not None and self._sender.is_cancelled()


class CancelWatcher:
    """Polls Triton for the cancellation of each live stream, at a bounded rate.

    The first check of a stream comes CANCEL_INTERVAL after it was accepted: one that ends at once costs no message. The
    engine releases a cancelled stream at once; its FINAL follows CANCEL_SETTLE later.
    """

    def __init__(self, cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        # Time of each stream's next check, monotonic seconds; least recently checked first.
        self._due: dict[ResponseSink, float] = {}
        # Delayed ends of cancelled streams, with their due times in monotonic seconds.
        self._ends: deque[tuple[float, Callable[[], None]]] = deque()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cancel", daemon=True)
        self._thread.start()

    def watch(self, sink: ResponseSink) -> None:
        with self._changed:
            self._due[sink] = time.monotonic() + CANCEL_INTERVAL
            # Otherwise the watcher is awake already.
            if len(self._due) == 1:
                self._changed.notify()

    def forget(self, sink: ResponseSink) -> None:
        with self._changed:
            self._due.pop(sink, None)

    def open_requests(self) -> int:
        """Requests whose FINAL has not been sent."""
        with self._changed:
            return len(self._due) + len(self._ends)

    def end_later(self, end: Callable[[], None]) -> None:
        """Call `end` after CANCEL_SETTLE."""
        with self._changed:
            self._ends.append((time.monotonic() + CANCEL_SETTLE, end))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            self._changed.notify()
        self._thread.join()
        self._end_due(math.inf)

    def _run(self) -> None:
        while not self._closed.wait(CANCEL_PERIOD):
            self._end_due(time.monotonic())
            for sink in self._take_due():
                if sink.is_cancelled():
                    self._cancel(sink.key)

    def _take_due(self) -> list[ResponseSink]:
        """The streams to check now; blocks while the watcher is idle."""
        with self._changed:
            while not self._due and not self._ends and not self._closed.is_set():
                self._changed.wait()
            now = time.monotonic()
            taken = [sink for sink, due in itertools.islice(self._due.items(), CANCEL_CHECKS) if due <= now]
            for sink in taken:
                del self._due[sink]
                self._due[sink] = now + CANCEL_INTERVAL
            return taken

    def _end_due(self, now: float) -> None:
        # Only one thread pops at a time.
        while self._ends and self._ends[0][0] <= now:
            _, end = self._ends.popleft()
            try:
                end()
            except Exception:
                log.exception("sending the end of a cancelled stream failed")


def _send_final(sender: Any, outputs: list[Any], error: RequestError | None) -> None:
    # One message: FINAL of a cancelled stream may crash Triton while another one is being written (docs/failures.md).
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    if error is not None:
        sender.send(pb_utils.InferenceResponse(error=_triton_error(error)), flags=final)
    elif outputs:
        sender.send(pb_utils.InferenceResponse(outputs), flags=final)
    else:
        sender.send(flags=final)


def _outputs(summary: Summary) -> list[Any]:
    usage = (summary.frames, summary.text_tokens, summary.prompt_rows, summary.withheld_samples)
    outputs = [_strings(FINISH_REASON, [summary.reason.value]), pb_utils.Tensor(USAGE, np.array(usage, np.int32))]
    if summary.words:
        outputs.append(_strings(WORDS, summary.words))
    if summary.spoken_share is not None:
        outputs.append(pb_utils.Tensor(SPOKEN_SHARE, np.array([summary.spoken_share], np.float32)))
    return outputs


def _strings(name: str, values: Collection[str]) -> Any:
    return pb_utils.Tensor(name, np.array([value.encode() for value in values], np.object_))


def _triton_error(error: RequestError) -> Any:
    # A gRPC stream carries only the message, so the message includes the code.
    code = STATUS[error.outcome]
    return pb_utils.TritonError(f"{code}: {error}", getattr(pb_utils.TritonError, code))
