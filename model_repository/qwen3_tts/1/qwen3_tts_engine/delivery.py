"""Sends decoded audio on a thread of its own, so that Triton never blocks talker or codec."""

import logging
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import numpy as np

from qwen3_tts_engine import metrics
from qwen3_tts_engine.audio import FRAME_SECONDS, SAMPLES_PER_FRAME
from qwen3_tts_engine.core import Chunks, Sink, Stream
from qwen3_tts_engine.request import Outcome, RequestError

log = logging.getLogger(__name__)


class Delivery:
    """An outbox and its sender loop."""

    def __init__(self, recorder: metrics.Recorder, fail: Callable[[Stream, RequestError], None]) -> None:
        """`fail` ends a stream after a codec or send error."""
        self._recorder = recorder
        self._fail = fail
        self._outbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self) -> None:
        while (job := self._outbox.get()) is not None:
            job()

    def close(self) -> None:
        """End the loop after the queued items."""
        self._outbox.put(None)

    def put(
        self, chunks: Chunks, pcm: np.ndarray, failed: dict[int, RequestError], ended: set[Stream], decoded: float
    ) -> None:
        """Queue decoded chunks, int16 [chunks, samples]; `ended` are the streams whose last chunk is among them.

        `decoded` is the end of the codec call, in perf_counter seconds.
        """
        self._outbox.put(partial(self._deliver, chunks, pcm, failed, ended, decoded))

    def end(self, stream: Stream) -> None:
        """Queue a stream's successful end."""
        self._outbox.put(partial(self.finish, stream.sink, None))

    def finish(self, sink: Sink, error: RequestError | None) -> None:
        """End a stream now. Called once, since the scheduler has removed the stream."""
        self._recorder.count(metrics.REQUESTS, label=(error.outcome if error else Outcome.OK).value)
        try:
            sink.finish(error)
        except Exception:
            log.exception("sending the end of a stream failed")

    def _deliver(
        self, chunks: Chunks, pcm: np.ndarray, failed: dict[int, RequestError], ended: set[Stream], decoded: float
    ) -> None:
        for row, stream in enumerate(chunks.streams):
            samples = pcm[row, : chunks.counts[row] * SAMPLES_PER_FRAME]
            error = failed.get(row) or self._send(stream, samples, first=bool(chunks.first[row]))
            if stream in ended:
                self.finish(stream.sink, error)
            elif error:
                self._fail(stream, error)
        self._recorder.observe(metrics.SEND, time.perf_counter() - decoded)

    def _send(self, stream: Stream, samples: np.ndarray, first: bool) -> RequestError | None:
        """Returns the send error, if any."""
        try:
            stream.sink.send(samples)
        except Exception as error:
            log.warning("sending to %s failed: %s", stream.key, error)
            return RequestError(f"sending the response failed: {error}")
        self._recorder.count(metrics.AUDIO, len(samples) / SAMPLES_PER_FRAME * FRAME_SECONDS)
        if first:
            self._recorder.observe(metrics.TTFA, time.perf_counter() - stream.arrived)
        return None
