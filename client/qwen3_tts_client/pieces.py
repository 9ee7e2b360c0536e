"""Text that is sent in pieces while it is spoken."""

import asyncio
import secrets
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import replace

from tritonclient.grpc import service_pb2

from qwen3_tts_client.protocol import MORE_TEXT, SpeechRequest, TextPiece, encode


class Sequence:
    """Encodes the pieces of one text as requests of one Triton sequence: the first has all fields of `request`."""

    def __init__(self, request: SpeechRequest, model: str, request_id: str = "") -> None:
        self._fields = request
        self._model = model
        self._request_id = request_id
        self._sequence_id = secrets.randbits(63) | 1
        self._is_begun = False

    def add(self, text: str) -> service_pb2.ModelInferRequest:
        return self._encode(text, end=False)

    def end(self) -> service_pb2.ModelInferRequest:
        """A last request, without text."""
        return self._encode("", end=True)

    def _encode(self, text: str, end: bool) -> service_pb2.ModelInferRequest:
        piece = TextPiece(self._sequence_id, start=not self._is_begun, end=end)
        message = encode(replace(self._fields, text=text), self._model, self._request_id, piece)
        self._fields, self._request_id, self._is_begun = SpeechRequest(""), MORE_TEXT, True
        return message


async def sequence(
    request: SpeechRequest, model: str, request_id: str, text: AsyncIterable[str]
) -> AsyncIterator[service_pb2.ModelInferRequest]:
    """The requests of a text as it arrives."""
    pieces = Sequence(request, model, request_id)
    async for piece in text:
        yield pieces.add(piece)
    yield pieces.end()


class TextFeed:
    """Pieces of text; each iteration starts with the first, so that a retry sends all of them again."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_ended = False
        self._changed = asyncio.Event()

    @property
    def characters(self) -> int:
        return sum(map(len, self.pieces))

    def append(self, text: str) -> None:
        self.pieces.append(text)
        self._changed.set()

    def end(self) -> None:
        self.is_ended = True
        self._changed.set()

    async def begins(self) -> bool:
        """Waits for the first piece; false if the text ends without one."""
        while not (self.pieces or self.is_ended):
            self._changed.clear()
            await self._changed.wait()
        return bool(self.pieces)

    async def __aiter__(self) -> AsyncIterator[str]:
        index = 0
        while True:
            while index < len(self.pieces):
                yield self.pieces[index]
                index += 1
            if self.is_ended:
                return
            self._changed.clear()
            await self._changed.wait()
