"""Sends decoded audio on a thread of its own, so that Triton never blocks talker or codec."""

import logging
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import numpy as np

from qwen3_tts_engine import metrics
from qwen3_tts_engine.audio import SAMPLE_RATE
from qwen3_tts_engine.codec.sound import fade_out
from qwen3_tts_engine.core.batches import Audio
from qwen3_tts_engine.core.streams import FinishReason, Sink, Stream, Summary
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
        self, streams: list[Stream], audio: Audio, failed: dict[int, RequestError], ended: set[Stream], decoded: float
    ) -> None:
        """Queue the audio of a codec call's streams; `ended` are those whose last chunk is among it.

        `decoded` is the end of the codec call, in perf_counter seconds.
        """
        self._outbox.put(partial(self._deliver, streams, audio, failed, ended, decoded))

    def end(self, stream: Stream) -> None:
        """Queue a stream's successful end."""
        self._outbox.put(partial(self._end, stream, None))

    def finish(self, sink: Sink, error: RequestError | None, summary: Summary | None = None) -> None:
        """End a stream now. Called once, since the scheduler has removed the stream."""
        self._recorder.count(metrics.REQUESTS, label=(error.outcome if error else Outcome.OK).value)
        try:
            sink.finish(error, summary)
        except Exception:
            log.exception("sending the end of a stream failed")

    def _deliver(
        self, streams: list[Stream], audio: Audio, failed: dict[int, RequestError], ended: set[Stream], decoded: float
    ) -> None:
        for row, (stream, samples) in enumerate(zip(streams, audio.pcm, strict=True)):
            if stream in ended and stream.reason is FinishReason.REPETITION:
                samples = fade_out(samples)
            error = failed.get(row) or self._send(stream, samples)
            if stream in ended:
                self._end(stream, error)
            elif error:
                self._fail(stream, error)
        self._recorder.observe(metrics.SEND, time.perf_counter() - decoded)

    def _end(self, stream: Stream, error: RequestError | None) -> None:
        """End a stream after its last chunk. One that was silent throughout is sent now."""
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
