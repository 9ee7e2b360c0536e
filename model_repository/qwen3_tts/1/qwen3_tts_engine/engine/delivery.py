"""Sends decoded audio: to Triton on threads of its own, which it may block, or to the process that calls Triton."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np

from qwen3_tts_engine import metrics
from qwen3_tts_engine.audio import SAMPLE_RATE
from qwen3_tts_engine.core.streams import Sink, Stream, Summary
from qwen3_tts_engine.engine.state import State
from qwen3_tts_engine.interfaces import Decoded
from qwen3_tts_engine.request import Outcome, RequestError

log = logging.getLogger(__name__)

# A response is a round trip to Triton, 0.2 ms, most of it waiting. Of some 2 000 streams of 1 000 listeners on an H200,
# 1 017 stalled with one sender, with two none and 144 in two runs; four cost 256 listeners 9 % of the throughput.
SENDERS = 2
Job = Callable[[], None]
Sending = Callable[[], AbstractContextManager[object]]
# What a codec call or an end leaves to send; None ends the sender.
Outbox = SimpleQueue[list[Job] | None]


class Delivery:
    """Outboxes and their sender loops. A stream has one outbox, so that its responses keep their order."""

    def __init__(
        self,
        state: State,
        recorder: metrics.Recorder,
        sending: Sending | None = None,
    ) -> None:
        """With `sending`, in whose context it sends, `flush` sends through sinks that never block; otherwise the loops
        send."""
        self._state, self._recorder = state, recorder
        self._outboxes: list[Outbox] = [SimpleQueue() for _ in range(1 if sending else SENDERS)]
        self._sending, self._flushing = sending, threading.Lock()
        loops = {f"sender {i}": partial(_send_all, outbox) for i, outbox in enumerate(self._outboxes)}
        self.loops = {} if sending else loops
        """By thread name."""

    def close(self) -> None:
        """End the loops after the queued items."""
        for outbox in self._outboxes:
            outbox.put(None)
        self.flush()

    def flush(self) -> None:
        """Send what is queued, unless the loops do; never called under the engine's lock, which a failure takes."""
        if self._sending:
            with self._flushing, self._sending():
                _send_queued(self._outboxes[0])

    def put(self, decoded: Decoded, audio: list[np.ndarray]) -> None:
        """Queue the audio of a codec call, int16 [samples] of each chunk."""
        jobs: list[list[Job]] = [[] for _ in self._outboxes]
        for row, (stream, samples) in enumerate(zip(decoded.chunks.streams, audio, strict=True)):
            job = partial(self._deliver, stream, samples, decoded.failed.get(row), decoded.ended)
            jobs[self._sender(stream)].append(job)
        for outbox, own in zip(self._outboxes, jobs, strict=True):
            if own:
                outbox.put(own)

    def end(self, streams: Collection[Stream]) -> None:
        """Queue the ends of streams, behind their audio."""
        for stream in streams:
            self._outboxes[self._sender(stream)].put([partial(self._end, stream)])
        if streams:
            self.flush()

    def fail(self, stream: Stream, error: RequestError) -> None:
        """End a stream with an error now; no effect on an ended stream."""
        if self._state.end(stream):
            self.finish(stream.sink, error)

    def finish(self, sink: Sink, error: RequestError | None, summary: Summary | None = None) -> None:
        """End a stream now. Called once, since the scheduler has removed the stream."""
        self._recorder.count(metrics.REQUESTS, label=(error.outcome if error else Outcome.OK).value)
        try:
            sink.finish(error, summary)
        except Exception:
            log.exception("sending the end of a stream failed")

    def _sender(self, stream: Stream) -> int:
        return hash(stream.key) % len(self._outboxes)

    def _deliver(self, stream: Stream, samples: np.ndarray, error: RequestError | None, decoded: float) -> None:
        if error := error or self._send(stream, samples):
            stream.error = error
            self.fail(stream, error)
        self._recorder.observe(metrics.SEND, time.perf_counter() - decoded)

    def _end(self, stream: Stream) -> None:
        """End a stream after its last chunk. One that was silent throughout is sent now."""
        error = stream.error
        if error is None and stream.is_withheld:
            error = self._send(stream, stream.begin())
        if error is None:
            self._recorder.count(metrics.UTTERANCES, label=stream.reason.value)
        self.finish(stream.sink, error, stream.summary)

    def _send(self, stream: Stream, samples: np.ndarray) -> RequestError | None:
        """Returns the send error, if any."""
        if not len(samples):
            return None
        try:
            stream.sink.send(samples)
        except Exception as error:
            log.warning("sending to %s failed: %s", stream.key, error)
            return RequestError(f"sending the response failed: {error}")
        self._recorder.count(metrics.AUDIO, len(samples) / SAMPLE_RATE)
        if not stream.has_audio:
            stream.has_audio = True
            self._recorder.observe(metrics.TTFA, time.perf_counter() - stream.arrived)
        return None


def _send_queued(outbox: Outbox) -> None:
    with suppress(Empty):
        while jobs := outbox.get_nowait():
            for job in jobs:
                job()


def _send_all(outbox: Outbox) -> None:
    while (jobs := outbox.get()) is not None:
        for job in jobs:
            job()
