"""A text that is too long for one request of the model is spoken in parts, one after the other."""

import re
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.pieces import TextFeed, sequence
from qwen3_tts_client.protocol import AudioChunk, End, SpeechRequest, Usage, encode
from qwen3_tts_client.sentences import TextPart, split
from qwen3_tts_client.stream import Responses
from qwen3_tts_gateway.backend import Backend, Metadata, Speech
from qwen3_tts_gateway.body import SAMPLES_PER_FRAME
from qwen3_tts_gateway.sentences import DividedText, PartFeed

# Only the model counts tokens; its refusal states the limit.
_TOO_LONG = re.compile(
    r"INVALID_ARG: text: .*: ((?P<tokens>\d+) tokens, at most (?P<limit>\d+) are allowed"
    r"|at most (?P<length>\d+) characters)\Z",
    re.DOTALL,
)
# Tokens are not spread evenly over a text.
_MARGIN = 0.9


class PartedSpeaker:
    """Speaks the parts of a text one after the other, as one Speech."""

    def __init__(self, backend: Backend, request: SpeechRequest, model: str, request_id: str, trace: Metadata) -> None:
        self._backend = backend
        self._request = request
        self._model = model
        self._request_id = request_id
        self._trace = trace
        self._samples = 0  # of the parts before the current one
        self._words = 0  # of the parts before the current one
        # Characters of the parts before the current one, without white space; None where the share is not known.
        self._characters = 0
        self._spoken: float | None = 0.0
        self._responses = Responses()  # its end is that of all parts

    async def speak(self) -> Speech:
        """Speaks the request's text. Returns once the first audio is there. Raises SpeechError."""
        return await self._begin(self._text_chunks())

    async def speak_pieces(self, text: TextFeed) -> Speech:
        """Speaks text as it arrives instead of the request's. Raises SpeechError."""
        return await self._begin(self._piece_chunks(text))

    async def _begin(self, chunks: AsyncGenerator[AudioChunk, None]) -> Speech:
        try:
            return Speech(await anext(chunks, None), chunks, self._responses)
        except BaseException:
            await chunks.aclose()
            raise

    async def _text_chunks(self) -> AsyncGenerator[AudioChunk, None]:
        parts = deque([TextPart(0, self._request.text)])
        while parts and (request := self._next_part()):
            part = parts.popleft()
            try:
                speech = await self._start(replace(request, text=part.text))
            except SpeechError as error:
                parts.extendleft(reversed(_split(part, error)))
                continue
            async with aclosing(self._chunks_of(speech, part)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _piece_chunks(self, text: TextFeed) -> AsyncGenerator[AudioChunk, None]:
        divided = DividedText(text)
        try:
            async for feed in divided:
                # No timeout runs until the first words are there.
                if not await feed.begins():
                    return
                if (request := self._next_part()) is None:
                    self._forget_share()
                    return
                async with aclosing(self._chunks_of(await self._start_pieces(request, feed), feed)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        finally:
            divided.close()

    async def _start(self, part: SpeechRequest) -> Speech:
        message = encode(part, self._model, self._request_id)
        return await self._backend.start(lambda: [message], self._trace)

    async def _start_pieces(self, part: SpeechRequest, text: TextFeed) -> Speech:
        return await self._backend.start(lambda: sequence(part, self._model, self._request_id, text), self._trace)

    def _next_part(self) -> SpeechRequest | None:
        """The request for the next part; None when its frames are used up."""
        if self._request.max_frames is None:
            return self._request
        left = self._request.max_frames - self._samples // SAMPLES_PER_FRAME
        return replace(self._request, max_frames=left) if left > 0 else None

    async def _chunks_of(self, speech: Speech, part: TextPart | PartFeed) -> AsyncGenerator[AudioChunk, None]:
        """Chunks of a part, and one without samples if its last response tells of words."""
        words = _PartWords(self._words, part, self._samples)
        try:
            async for chunk in speech.chunks():
                yield replace(chunk, words=words.placed(chunk.words))
        finally:
            await speech.close()
        if speech.end.words:
            yield AudioChunk(np.empty(0, np.int16), None, words.placed(speech.end.words))
        self._samples += speech.samples
        self._words = words.count
        self._responses.end = replace(_join(self._responses.end, speech.end), spoken_share=self._share(speech, part))

    def _share(self, speech: Speech, part: TextPart | PartFeed) -> float | None:
        """Share of the text that was spoken, with this part."""
        share = speech.end.spoken_share
        count = _visible(part.text if isinstance(part, TextPart) else "".join(part.pieces))
        self._characters += count
        self._spoken = None if share is None or self._spoken is None else self._spoken + share * count
        total = _visible(self._request.text) or self._characters
        return None if self._spoken is None or not total else self._spoken / total

    def _forget_share(self) -> None:
        """More text follows, of unknown length, that is not spoken."""
        if self._responses.end:
            self._responses.end = replace(self._responses.end, spoken_share=None)


class _PartWords:
    """Moves the words of a part to its place in the utterance, which is known once the part has begun."""

    def __init__(self, before: int, part: TextPart | PartFeed, samples: int) -> None:
        self._before = self.count = before  # words
        self._part = part
        self._samples = samples

    def placed(self, told: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        by = {"index": self._before, "start": self._samples, "end": self._samples}
        by |= dict.fromkeys(("first", "last"), self._part.start)
        moved = tuple(
            word | {name: word[name] + by[name] for name in by if word.get(name) is not None} for word in told
        )
        self.count = max((self.count, *(word["index"] + 1 for word in moved)))
        return moved


def _visible(text: str) -> int:
    return len("".join(text.split()))


def _split(part: TextPart, refusal: SpeechError) -> list[TextPart]:
    """A refused text in parts that are expected to be short enough. Raises the refusal if it has another reason."""
    reason = _TOO_LONG.search(str(refusal))
    if refusal.outcome != "invalid" or not reason or len(part.text) < 2:
        raise refusal
    if reason["length"]:
        size = int(reason["length"])
    else:
        size = int(len(part.text) * int(reason["limit"]) / int(reason["tokens"]) * _MARGIN)
    return split(part, min(max(size, 1), len(part.text) - 1))


def _join(before: End | None, end: End) -> End:
    """The first reason other than stop counts, as in the model's own parts."""
    if before is None:
        return end
    reason = before.finish_reason if before.finish_reason not in (None, "stop") else end.finish_reason
    if before.usage is None or end.usage is None:
        return End(end.request_id, reason)
    counts = (a + b for a, b in zip(astuple(before.usage), astuple(end.usage), strict=True))
    return End(end.request_id, reason, Usage(*counts))
