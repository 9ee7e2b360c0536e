"""Divides texts that are too long for one request of the model."""

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator

from qwen3_tts_client.pieces import TextFeed

_SENTENCE_END = re.compile(r"([.!?…][\"'”’»)\]]*\s|[。！？\n])\Z")
_LONGEST_END = 8  # characters of a sentence end
# High estimates of tokens per ASCII letter, other ASCII and other character: only the model counts tokens, and sent
# text cannot be taken back.
_LETTER, _ASCII, _OTHER = 0.5, 1.0, 1.5
# A part ends with the first sentence after PART_TOKENS, at the latest after MAX_PART_TOKENS.
PART_TOKENS, MAX_PART_TOKENS = 600, 1000


class PartFeed(TextFeed):
    """The pieces of a part, which begins at character `start` of the whole text."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start


class DividedText:
    """Divides a text while it arrives; iterates over its parts, which may still grow."""

    def __init__(self, text: AsyncIterable[str]) -> None:
        self._parts: asyncio.Queue[PartFeed | None] = asyncio.Queue()
        self._characters = 0
        self._count = 0
        self._task = asyncio.ensure_future(self._read(text))

    def close(self) -> None:
        self._task.cancel()

    async def __aiter__(self) -> AsyncIterator[PartFeed]:
        while (part := await self._parts.get()) is not None:
            yield part

    async def _read(self, text: AsyncIterable[str]) -> None:
        measure, part = _Measure(), self._begin()
        async for piece in text:
            *whole, rest = measure.divide(piece)
            for end in whole:
                self._append(part, end)
                part.end()
                part = self._begin()
            self._append(part, rest)
        part.end()
        self._parts.put_nowait(None)

    def _begin(self) -> PartFeed:
        part = PartFeed(self._characters)
        self._parts.put_nowait(part)
        self._count += 1
        return part

    def _append(self, part: PartFeed, text: str) -> None:
        """Strips white space before a later part: a part of white space alone would be refused."""
        self._characters += len(text)
        if self._count > 1 and not part.pieces:
            text = text.lstrip()
            part.start = self._characters - len(text)
        if text:
            part.append(text)


class _Measure:
    """Estimates the tokens of the current part."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._tail = ""

    def divide(self, piece: str) -> list[str]:
        """The next piece, cut where parts end."""
        ends = [index + 1 for index, character in enumerate(piece) if self._is_end(character)]
        return [piece[start:end] for start, end in zip([0, *ends], [*ends, len(piece)], strict=True)]

    def _is_end(self, character: str) -> bool:
        self._tokens += _cost(character)
        self._tail = (self._tail + character)[-_LONGEST_END:]
        if self._tokens < PART_TOKENS:
            return False
        if self._tokens < MAX_PART_TOKENS and not _SENTENCE_END.search(self._tail):
            return False
        self._tokens = 0.0
        return True


def _cost(character: str) -> float:
    if not character.isascii():
        return _OTHER
    return _LETTER if character.isalpha() or character == " " else _ASCII
