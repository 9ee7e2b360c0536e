"""Sequences of requests: each brings more text to one utterance."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from qwen3_tts_engine.core import Sink
from qwen3_tts_engine.engine import Engine
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.frontend.streamed_text import StreamedText
from qwen3_tts_engine.request import Cancelled, InvalidRequest, RequestError, SpeechOptions, quoted

SequenceId = int | str
SEQUENCE_ID = "sequence_id"


@dataclass(frozen=True)
class SequencePosition:
    """Where a request stands in its sequence."""

    sequence_id: SequenceId
    start: bool
    last: bool


@dataclass(eq=False)
class Sequence:
    """One utterance. Text that comes before its voice is found waits in `backlog`; `lock` keeps the pieces in order.

    `heard` is when it last brought text, in perf_counter seconds; `ended` says that all text is there.
    """

    sequence_id: SequenceId
    backlog: str
    ended: bool
    heard: float
    text: StreamedText | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class SequenceSink:
    """The sink of a sequence's stream (core.Sink): with the stream ends the sequence."""

    sink: Sink
    forget: Callable[[Callable[[], None]], None]

    def send(self, pcm: np.ndarray) -> None:
        self.sink.send(pcm)

    def finish(self, error: RequestError | None) -> None:
        self.forget(partial(self.sink.finish, error))


class Sequences:
    """The sequences that are open, by the id that their caller chose.

    `open` and `append` are called by one thread, in the order of the requests; the others by any. A sequence's lock is
    never taken by who holds `_lock`, nor `_lock` by who holds the engine's.
    """

    def __init__(self, engine: Engine, prompts: PromptBuilder, idle_seconds: float, max_characters: int) -> None:
        """`max_characters` of text wait for a voice at most."""
        self._engine = engine
        self._prompts = prompts
        self._idle_seconds = idle_seconds
        self._max_characters = max_characters
        self._open: dict[SequenceId, Sequence] = {}
        self._lock = threading.Lock()

    def open(self, sequence_id: SequenceId, text: str, last: bool) -> Sequence:
        """Take in the text of a first request, which may be empty; `begin` or `abandon` what is returned.

        Raises InvalidRequest for an id that is in use.
        """
        self._check_length(text)
        with self._lock:
            if sequence_id in self._open:
                raise InvalidRequest(SEQUENCE_ID, sequence_id, "in use: end its utterance first, or take another id")
            sequence = Sequence(sequence_id, text, last, time.perf_counter())
            if not last:
                self._open[sequence_id] = sequence
        return sequence

    def begin(self, sequence: Sequence, request: SpeechOptions, sink: Sink, key: str, arrived: float) -> None:
        """Speak what has come, and what comes. From now on the sink is called.

        `arrived`, in perf_counter seconds, is when it was asked for. Raises InvalidRequest, Unavailable.
        """
        with sequence.lock:
            text = self._prompts.streamed(request, SequenceSink(sink, partial(self.abandon, sequence)), key)
            text.stream.arrived = arrived
            pieces = text.read(sequence.backlog, sequence.ended)
            self._engine.submit(text.stream)
            sequence.text = text
            self._engine.update(text.stream, lambda: text.apply(pieces, sequence.ended))

    def abandon(self, sequence: Sequence, tell: Callable[[], None] = lambda: None) -> None:
        """Forget a sequence whose utterance did not begin or has ended, and `tell` its caller.

        `tell` runs before any caller can see the sequence as closed; afterwards its id is free.
        """
        with self._lock:
            if self._open.get(sequence.sequence_id) is sequence:
                del self._open[sequence.sequence_id]
            tell()

    def append(self, sequence_id: SequenceId, text: str, last: bool) -> None:
        """More text for an open sequence, and its end when `last`.

        Raises InvalidRequest for an id that is not open, and for a text that cannot be spoken: that ends the utterance.
        """
        with self._lock:
            sequence = self._open.get(sequence_id)
            if sequence is None:
                raise InvalidRequest(SEQUENCE_ID, sequence_id, "not open: no sequence_start yet, or its end came")
            if text:
                sequence.heard = time.perf_counter()
            if last:
                del self._open[sequence_id]
        with sequence.lock:
            if sequence.text is None:
                self._keep(sequence, text, last)
            else:
                self._add(sequence.text, text, last)

    def expire(self) -> None:
        """End the sequences that have brought nothing for too long."""
        before = time.perf_counter() - self._idle_seconds
        with self._lock:
            silent = [sequence for sequence in self._open.values() if sequence.text and sequence.heard < before]
        for sequence in silent:
            assert sequence.text is not None
            reason = f"{SEQUENCE_ID}: {quoted(sequence.sequence_id)}: neither text nor sequence_end for"
            self._engine.fail(sequence.text.stream, Cancelled(f"{reason} {self._idle_seconds:g} s"))

    def _keep(self, sequence: Sequence, text: str, last: bool) -> None:
        """Raises InvalidRequest for more text than can be spoken, and lets the utterance be refused for the same."""
        backlog = sequence.backlog + text
        sequence.backlog, sequence.ended = backlog[: self._max_characters + 1], last
        self._check_length(backlog)

    def _check_length(self, text: str) -> None:
        if len(text) > self._max_characters:
            raise InvalidRequest("text", text, f"at most {self._max_characters} characters")

    def _add(self, text: StreamedText, more: str, last: bool) -> None:
        """Raises RequestError for a text that cannot be spoken, which ends the utterance."""
        try:
            pieces = text.read(more, last)
        except RequestError as error:
            self._engine.fail(text.stream, error)
            raise
        self._engine.update(text.stream, lambda: text.apply(pieces, last))
