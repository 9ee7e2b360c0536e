"""Sequences of requests: each brings more text to one utterance."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from qwen3_tts_engine.engine import Engine
from qwen3_tts_engine.prompt import PromptBuilder
from qwen3_tts_engine.request import Cancelled, InvalidRequest, RequestError, SynthesisRequest
from qwen3_tts_engine.stream import Sink
from qwen3_tts_engine.streamed_text import StreamedText

SequenceId = int | str
SEQUENCE_ID = "sequence_id"


@dataclass(frozen=True)
class SequencePiece:
    """Where a request stands in its sequence."""

    sequence_id: SequenceId
    start: bool
    last: bool


@dataclass(eq=False)
class Sequence:
    """One utterance. What comes before its voice is found waits in `backlog`; `lock` keeps the pieces in order.

    `heard` is when it last brought text, in perf_counter seconds.
    """

    sequence_id: SequenceId
    text: StreamedText | None = None
    backlog: deque[tuple[str, bool]] = field(default_factory=deque)
    heard: float = field(default_factory=time.perf_counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sequences:
    """The sequences that are open, by the id that their caller chose.

    `open` and `append` are called by one thread, in the order of the requests; the others by any.
    """

    def __init__(self, engine: Engine, prompts: PromptBuilder, idle_seconds: float) -> None:
        self._engine = engine
        self._prompts = prompts
        self._idle_seconds = idle_seconds
        self._open: dict[SequenceId, Sequence] = {}
        self._lock = threading.Lock()

    def open(self, sequence_id: SequenceId, text: str, last: bool) -> Sequence:
        """Take in the text of a first request, which may be empty; `begin` or `abandon` what is returned.

        Raises InvalidRequest for an id that is in use.
        """
        with self._lock:
            held = self._open.get(sequence_id)
            if held and (held.text is None or self._engine.is_live(held.text.stream)):
                raise InvalidRequest(SEQUENCE_ID, sequence_id, "in use: end its utterance first, or take another id")
            sequence = Sequence(sequence_id)
            sequence.backlog.append((text, last))
            if not last:
                self._open[sequence_id] = sequence
        return sequence

    def begin(self, sequence: Sequence, request: SynthesisRequest, sink: Sink, key: str, arrived: float) -> None:
        """Speak what has come, and what comes. From now on the sink is called.

        `arrived`, in perf_counter seconds, is when it was asked for. Raises InvalidRequest, Unavailable.
        """
        with sequence.lock:
            text = self._prompts.streamed(request, sink, key)
            text.stream.arrived = arrived
            first, last = sequence.backlog.popleft()
            pieces = text.read(first, last)
            self._engine.hold(text.stream)
            self._engine.tell(text.stream, lambda: text.apply(pieces, last))
            sequence.text = text
            while sequence.backlog:
                self._add(sequence, text, *sequence.backlog.popleft())

    def abandon(self, sequence: Sequence, tell: Callable[[], None] = lambda: None) -> None:
        """Forget a sequence whose utterance did not begin or has failed, and `tell` why.

        Before that nobody hears that it is not open, and after it its id is free.
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
            sequence.heard = time.perf_counter()
            if last:
                del self._open[sequence_id]
        with sequence.lock:
            if sequence.text is None:
                sequence.backlog.append((text, last))
            elif error := self._add(sequence, sequence.text, text, last):
                raise error

    def expire(self) -> None:
        """End the sequences that have brought nothing for too long."""
        now = time.perf_counter()
        with self._lock:
            for sequence in list(self._open.values()):
                if sequence.text and now - sequence.heard > self._idle_seconds:
                    del self._open[sequence.sequence_id]
                    reason = f"{SEQUENCE_ID}: {sequence.sequence_id!r}: neither text nor sequence_end for"
                    self._engine.fail(sequence.text.stream, Cancelled(f"{reason} {self._idle_seconds:g} s"))

    def _add(self, sequence: Sequence, text: StreamedText, more: str, last: bool) -> RequestError | None:
        """Returns why the text cannot be spoken, which ends the utterance."""
        try:
            pieces = text.read(more, last)
        except RequestError as error:
            self.abandon(sequence, partial(self._engine.fail, text.stream, error))
            return error
        self._engine.tell(text.stream, lambda: text.apply(pieces, last))
        return None
