"""Sequences of requests that stream the text of one utterance."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from qwen3_tts_engine.core.streams import Sink, Summary
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.frontend.streamed_text import StreamedText
from qwen3_tts_engine.request import (
    SEQUENCE_ID,
    Cancelled,
    InvalidRequest,
    RequestError,
    SequenceId,
    SpeechOptions,
    quoted,
)


@dataclass(eq=False)
class Sequence:
    """One utterance. `backlog` buffers text until the voice is resolved; `lock` keeps the pieces in order.

    `last_text_at` is the arrival of the latest text, in perf_counter seconds; `ended` means that all text has arrived.
    """

    sequence_id: SequenceId
    backlog: str
    ended: bool
    last_text_at: float
    text: StreamedText | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class SequenceSink:
    """The sink of a sequence's stream (core.Sink); ends the sequence together with the stream."""

    sink: Sink
    end: Callable[[Callable[[], None]], None]

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None:
        self.sink.send(pcm, words)

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None:
        self.end(partial(self.sink.finish, error, summary))


class Sequences:
    """Open sequences by their client-chosen ids.

    One thread calls `open` and `append`, in request order; any thread calls the others. Lock order: a sequence's lock,
    `_lock`, the engine's lock.
    """

    def __init__(self, engine: Engine, prompts: PromptBuilder, idle_seconds: float, max_characters: int) -> None:
        """At most `max_characters` of text are buffered until the voice is resolved."""
        self._engine = engine
        self._prompts = prompts
        self._idle_seconds = idle_seconds
        self._max_characters = max_characters
        self._open: dict[SequenceId, Sequence] = {}
        self._lock = threading.Lock()

    def open(self, sequence_id: SequenceId, text: str, last: bool) -> Sequence:
        """Open a sequence with the text of its first request, which may be empty; `begin` or `abandon` the result.

        Raises InvalidRequest for an id that is in use.
        """
        self._check_length(text)
        with self._lock:
            if sequence_id in self._open:
                raise InvalidRequest(SEQUENCE_ID, sequence_id, "in use: end its utterance first, or use another id")
            sequence = Sequence(sequence_id, text, last, time.perf_counter())
            if not last:
                self._open[sequence_id] = sequence
        return sequence

    def begin(self, sequence: Sequence, request: SpeechOptions, sink: Sink, key: str, arrived: float) -> None:
        """Start the stream with the buffered text. From now on the sink is called.

        `arrived` is the arrival of the first request, in perf_counter seconds. Raises InvalidRequest, Unavailable.
        """
        with sequence.lock:
            text = self._prompts.streamed(request, SequenceSink(sink, partial(self.abandon, sequence)), key)
            text.stream.arrived = arrived
            pieces = text.read(sequence.backlog, sequence.ended)
            self._engine.submit(text.stream)
            sequence.text = text
            self._engine.update(text.stream, lambda: text.apply(pieces, sequence.ended))

    def abandon(self, sequence: Sequence, notify: Callable[[], None] = lambda: None) -> None:
        """Remove a sequence whose utterance did not start or has ended; `notify` its caller.

        `notify` runs before any caller can see the sequence as closed; afterwards its id is free.
        """
        with self._lock:
            if self._open.get(sequence.sequence_id) is sequence:
                del self._open[sequence.sequence_id]
            notify()

    def append(self, sequence_id: SequenceId, text: str, last: bool) -> None:
        """Append text to an open sequence; `last` ends it.

        Raises InvalidRequest for an id that is not open, and for invalid text, which ends the utterance.
        """
        with self._lock:
            sequence = self._open.get(sequence_id)
            if sequence is None:
                raise InvalidRequest(SEQUENCE_ID, sequence_id, "not open: not started, or already ended")
            if text:
                sequence.last_text_at = time.perf_counter()
            if last:
                del self._open[sequence_id]
        with sequence.lock:
            if sequence.text is None:
                self._buffer(sequence, text, last)
            else:
                self._feed(sequence.text, text, last)

    def expire(self) -> None:
        """End the sequences whose idle time exceeds the limit."""
        cutoff = time.perf_counter() - self._idle_seconds
        with self._lock:
            open_sequences = self._open.values()
            idle = [sequence for sequence in open_sequences if sequence.text and sequence.last_text_at < cutoff]
        for sequence in idle:
            assert sequence.text is not None
            reason = f"{SEQUENCE_ID}: {quoted(sequence.sequence_id)}: neither text nor sequence_end for"
            self._engine.fail(sequence.text.stream, Cancelled(f"{reason} {self._idle_seconds:g} s"))

    def _buffer(self, sequence: Sequence, text: str, last: bool) -> None:
        """Append to the backlog. Raises InvalidRequest when it is too long; `begin` then fails likewise."""
        backlog = sequence.backlog + text
        sequence.backlog, sequence.ended = backlog[: self._max_characters + 1], last
        self._check_length(backlog)

    def _check_length(self, text: str) -> None:
        if len(text) > self._max_characters:
            raise InvalidRequest("text", text, f"at most {self._max_characters} characters")

    def _feed(self, text: StreamedText, more: str, last: bool) -> None:
        """Feed the stream. Raises RequestError for invalid text, which ends the utterance."""
        try:
            pieces = text.read(more, last)
        except RequestError as error:
            self._engine.fail(text.stream, error)
            raise
        self._engine.update(text.stream, lambda: text.apply(pieces, last))
