"""Sequences of requests: each brings more text to one utterance."""

import threading
import time
from dataclasses import dataclass, field

from qwen3_tts_engine.engine import Engine
from qwen3_tts_engine.prompt import PromptBuilder
from qwen3_tts_engine.request import Cancelled, InvalidRequest, RequestError, SynthesisRequest
from qwen3_tts_engine.stream import Sink
from qwen3_tts_engine.streamed_text import StreamedText

SequenceId = int | str
SEQUENCE_ID = "sequence_id"


@dataclass(eq=False)
class Sequence:
    """`heard` is when it last brought text, in perf_counter seconds."""

    text: StreamedText
    heard: float = field(default_factory=time.perf_counter)


class Sequences:
    """The sequences that are open, by the id that their caller chose.

    `start` and `append` are called by one thread, in the order of the requests; `expire` by any other.
    """

    def __init__(self, engine: Engine, prompts: PromptBuilder, idle_seconds: float) -> None:
        self._engine = engine
        self._prompts = prompts
        self._idle_seconds = idle_seconds
        self._open: dict[SequenceId, Sequence] = {}
        self._lock = threading.Lock()

    def start(self, sequence_id: SequenceId, request: SynthesisRequest, sink: Sink, key: str, last: bool) -> None:
        """Begin an utterance with the text that its first request brings, which may be empty.

        From now on its sink is called. Raises InvalidRequest, also for an id that is in use; Unavailable.
        """
        with self._lock:
            held = self._open.get(sequence_id)
        if held and self._engine.is_live(held.text.stream):
            raise InvalidRequest(SEQUENCE_ID, sequence_id, "in use: end its utterance first, or take another id")
        text = self._prompts.streamed(request, sink, key)
        pieces = text.read(request.text, last)
        self._engine.hold(text.stream)
        if not last:
            with self._lock:
                self._open[sequence_id] = Sequence(text)
        self._engine.tell(text.stream, lambda: text.apply(pieces, last))

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
        try:
            pieces = sequence.text.read(text, last)
        except RequestError as error:
            self._close(sequence_id)
            self._engine.fail(sequence.text.stream, error)
            raise
        self._engine.tell(sequence.text.stream, lambda: sequence.text.apply(pieces, last))

    def expire(self) -> None:
        """End the sequences that have brought nothing for too long."""
        now = time.perf_counter()
        with self._lock:
            idle = {i: s for i, s in self._open.items() if now - s.heard > self._idle_seconds}
            for sequence_id in idle:
                del self._open[sequence_id]
        for sequence_id, sequence in idle.items():
            reason = f"{SEQUENCE_ID}: {sequence_id!r}: neither text nor sequence_end for {self._idle_seconds:g} s"
            self._engine.fail(sequence.text.stream, Cancelled(reason))

    def _close(self, sequence_id: SequenceId) -> None:
        with self._lock:
            self._open.pop(sequence_id, None)
