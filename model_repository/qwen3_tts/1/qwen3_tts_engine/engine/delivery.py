"""Sends decoded audio to the process that calls Triton."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np

from qwen3_tts_engine import metrics
from qwen3_tts_engine.audio import SAMPLE_RATE
from qwen3_tts_engine.core.streams import Sink, Stream, Summary
from qwen3_tts_engine.core.words import WordEvent
from qwen3_tts_engine.engine.state import State
from qwen3_tts_engine.interfaces import Decoded
from qwen3_tts_engine.request import Outcome, RequestError

log = logging.getLogger(__name__)

Sending = Callable[[], AbstractContextManager[object]]


class Delivery:
    """Sends through sinks, which never block, in the order in which audio and ends were queued."""

    def __init__(self, state: State, recorder: metrics.Recorder, sending: Sending = nullcontext) -> None:
        """Each `flush` sends in the context of `sending`, which may write its messages together."""
        self._state, self._recorder = state, recorder
        self._outbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._sending, self._flushing = sending, threading.Lock()

    def flush(self) -> None:
        """Send what is queued; never called under the engine's lock, which a failure takes."""
        with self._flushing, self._sending(), suppress(Empty):
            while True:
                self._outbox.get_nowait()()

    def put(self, decoded: Decoded, audio: list[np.ndarray]) -> None:
        """Queue the audio of a codec call, int16 [samples] of each chunk."""
        for row, (stream, samples) in enumerate(zip(decoded.chunks.streams, audio, strict=True)):
            stream_words = decoded.chunks.words.get(row, [])
            self._outbox.put(
                partial(self._deliver, stream, samples, stream_words, decoded.failed.get(row), decoded.ended)
            )

    def end(self, streams: Collection[Stream]) -> None:
        """Queue the ends of streams, behind their audio."""
        for stream in streams:
            self._outbox.put(partial(self._end, stream))
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

    def _deliver(
        self, stream: Stream, samples: np.ndarray, words: list[WordEvent], error: RequestError | None, decoded: float
    ) -> None:
        stream.unsent_words += words if stream.tells_words else []
        if error := error or self._send(stream, samples):
            stream.error = error
            self.fail(stream, error)
        self._recorder.observe(metrics.SEND, time.perf_counter() - decoded)

    def _end(self, stream: Stream) -> None:
        """End a stream after its last chunk. One that was silent throughout is sent now."""
        error = stream.error
        if error is None and stream.is_withheld:
            error = self._send(stream, stream.begin())
        if error is None and stream.last_pause and not stream.following:
            error = self._send(stream, np.zeros(stream.last_pause, np.int16))
        if error is None:
            self._recorder.count(metrics.UTTERANCES, label=stream.reason.value)
            self._recorder.count(metrics.CONTINUED, stream.continued)
            if stream.words:
                self._recorder.count(metrics.JUMPS, stream.words.jumps.ahead, "ahead")
                self._recorder.count(metrics.JUMPS, stream.words.jumps.back, "back")
        self.finish(stream.sink, error, stream.summary)

    def _send(self, stream: Stream, samples: np.ndarray) -> RequestError | None:
        """Returns the send error, if any."""
        if not len(samples):
            return None
        words = stream.told(stream.unsent_words, stream.sent_samples)
        stream.unsent_words = []
        try:
            stream.sink.send(samples, words)
        except Exception as error:
            log.warning("sending to %s failed: %s", stream.key, error)
            return RequestError(f"sending the response failed: {error}")
        self._recorder.count(metrics.AUDIO, len(samples) / SAMPLE_RATE)
        if not stream.sent_samples:
            self._recorder.observe(metrics.TTFA, time.perf_counter() - stream.arrived)
        stream.sent_samples += len(samples)
        return None
