"""One utterance of a WebSocket session, whose text arrives while it is spoken."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from qwen3_tts_client.gateway.schema import SessionOptions


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


@dataclass
class Turn:
    index: int
    options: SessionOptions
    text: TextFeed = field(default_factory=TextFeed)
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.text.end()
