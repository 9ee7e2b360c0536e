"""Appends streamed text to a running stream."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from qwen3_tts_engine.audio import SAMPLE_RATE
from qwen3_tts_engine.core.streams import Prompt, Stream
from qwen3_tts_engine.frontend.spoken_text import SpokenText
from qwen3_tts_engine.frontend.text_pieces import Piece, PiecewiseText
from qwen3_tts_engine.request import SpeechOptions

Change = Callable[[], None]


class PartBuilder(Protocol):
    """The methods of PromptBuilder that StreamedText uses."""

    def ids_to_begin(self, request: SpeechOptions) -> int: ...

    def begin_part(self, request: SpeechOptions, ids: list[int], reserved_frames: int) -> Prompt: ...

    def end_part(self, request: SpeechOptions, prompt: Prompt) -> None: ...

    def spans(self, piece: Piece) -> list[tuple[int, int]]: ...


class StreamedText:
    """Feeds text to a stream in pieces. One thread calls `read`; `apply` is called under the engine's lock."""

    def __init__(
        self, builder: PartBuilder, request: SpeechOptions, stream: Stream, spoken: SpokenText, text: PiecewiseText
    ) -> None:
        self.stream = stream
        self._spoken = spoken
        self._builder = builder
        self._request = request
        self._text = text
        self._needed = builder.ids_to_begin(request)
        self._ids: list[int] = []  # of a part with too few ids to start
        self._pause = 0  # before that part
        self._part: Prompt | None = None

    def read(self, text: str, last: bool) -> list[Change]:
        """The changes to `apply` for this text; `last` ends the text. Raises InvalidRequest."""
        pieces = pieces_of(self._spoken, self._text, text, ends=last)
        return [change for piece in pieces for change in self._changes(piece)]

    def apply(self, changes: list[Change], last: bool) -> None:
        """Apply what `read` returned to the stream."""
        for change in changes:
            change()
        self.stream.is_open = not last
        self.stream.last_pause = self._text.pause_samples

    def _changes(self, piece: Piece) -> Iterator[Change]:
        if self.stream.words:
            spans, written = self._builder.spans(piece), self._spoken.written(piece.start, len(piece.text))
            yield partial(self.stream.words.add, piece.start, piece.text, spans, ends=piece.ends, written=written)
        if self._part:
            yield partial(_extend, self._part, piece.ids)
        else:
            self._ids, self._pause = self._ids + piece.ids, self._pause + piece.pause
            if self._ids and (piece.ends or len(self._ids) >= self._needed):
                self._part = self._builder.begin_part(self._request, self._ids, self.stream.reserved_frames)
                self._part.pause, self._ids, self._pause = self._pause, [], 0
                yield partial(self._begin, self._part)
        if piece.ends and self._part:
            yield partial(self._builder.end_part, self._request, self._part)
            self._part = None

    def _begin(self, part: Prompt) -> None:
        if len(self.stream.prompt):
            self.stream.following.append(part)
        else:
            self.stream.prompt = part


def pieces_of(spoken: SpokenText, pieces: PiecewiseText, text: str, *, ends: bool) -> list[Piece]:
    """The pieces of text that became final. Raises InvalidRequest."""
    final = []
    for passage in spoken.read(text, ends=ends):
        final += pieces.add(passage.spoken.text)
        if passage.pause_seconds is not None:
            final += pieces.pause(round(passage.pause_seconds * SAMPLE_RATE))
    return [*final, *(pieces.end() if ends else ())]


def _extend(part: Prompt, ids: list[int]) -> None:
    part.arrived += ids
    part.num_spoken += len(ids)
