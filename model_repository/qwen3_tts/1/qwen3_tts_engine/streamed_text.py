"""An utterance whose text comes while it is spoken."""

from typing import Protocol

from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.stream import Prompt, Stream
from qwen3_tts_engine.text_pieces import Piece, PiecewiseText


class PartBuilder(Protocol):
    """What is wanted of prompt.PromptBuilder."""

    def begin_part(
        self, request: SynthesisRequest, ids: list[int], reserved_frames: int, whole: bool
    ) -> Prompt | None: ...

    def end_part(self, request: SynthesisRequest, prompt: Prompt) -> None: ...


class StreamedText:
    """Brings text to a stream, piece by piece: `read` is called by one thread, `apply` under the engine's lock."""

    def __init__(self, builder: PartBuilder, request: SynthesisRequest, stream: Stream, text: PiecewiseText) -> None:
        """`request` says how to speak; its own text is not read."""
        self.stream = stream
        self._builder = builder
        self._request = request
        self._text = text
        self._ids: list[int] = []  # of a part that has too few of them to begin
        self._part: Prompt | None = None

    def read(self, text: str, last: bool) -> list[Piece]:
        """Ids that are final with this text; `last` says that it is the end. Raises InvalidRequest."""
        pieces = self._text.add(text)
        return [*pieces, *self._text.end()] if last else pieces

    def apply(self, pieces: list[Piece], last: bool) -> None:
        """Let the stream have what was read."""
        for piece in pieces:
            self._add(piece)
        self.stream.is_open = not last

    def _add(self, piece: Piece) -> None:
        if self._part:
            self._part.arrived += piece.ids
            self._part.num_spoken += len(piece.ids)
        else:
            self._ids += piece.ids
            self._begin(piece.ends)
        if piece.ends and self._part:
            self._builder.end_part(self._request, self._part)
            self._part = None

    def _begin(self, ends: bool) -> None:
        if not self._ids:
            return
        self._part = self._builder.begin_part(self._request, self._ids, self.stream.reserved_frames, whole=ends)
        if self._part is None:
            return
        self._ids = []
        if len(self.stream.prompt):
            self.stream.following.append(self._part)
        else:
            self.stream.prompt = self._part
