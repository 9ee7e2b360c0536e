"""A text that is too long for one request of the model is spoken in parts, one after the other."""

import re
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import astuple, replace

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.pieces import TextFeed, sequence
from qwen3_tts_client.protocol import AudioChunk, End, SpeechRequest, Usage, encode
from qwen3_tts_client.stream import Responses
from qwen3_tts_gateway.backend import Backend, Metadata, Speech
from qwen3_tts_gateway.body import SAMPLES_PER_FRAME
from qwen3_tts_gateway.sentences import DividedText, split

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
        self._samples = 0
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
        texts = deque([self._request.text])
        while texts and (part := self._next_part()):
            text = texts.popleft()
            try:
                speech = await self._start(replace(part, text=text))
            except SpeechError as error:
                texts.extendleft(reversed(_split(text, error)))
                continue
            async with aclosing(self._chunks_of(speech)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _piece_chunks(self, text: TextFeed) -> AsyncGenerator[AudioChunk, None]:
        divided = DividedText(text)
        try:
            async for feed in divided:
                # No timeout runs until the first words are there.
                if not (await feed.begins() and (part := self._next_part())):
                    return
                async with aclosing(self._chunks_of(await self._start_pieces(part, feed))) as chunks:
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

    async def _chunks_of(self, speech: Speech) -> AsyncGenerator[AudioChunk, None]:
        try:
            async for chunk in speech.chunks():
                yield chunk
        finally:
            await speech.close()
        self._samples += speech.samples
        self._responses.end = _join(self._responses.end, speech.end)


def _split(text: str, refusal: SpeechError) -> list[str]:
    """A refused text in parts that are expected to be short enough. Raises the refusal if it has another reason."""
    reason = _TOO_LONG.search(str(refusal))
    if refusal.outcome != "invalid" or not reason or len(text) < 2:
        raise refusal
    if reason["length"]:
        size = int(reason["length"])
    else:
        size = int(len(text) * int(reason["limit"]) / int(reason["tokens"]) * _MARGIN)
    return split(text, min(max(size, 1), len(text) - 1))


def _join(before: End | None, end: End) -> End:
    """The first reason other than stop counts, as in the model's own parts."""
    if before is None:
        return end
    reason = before.finish_reason if before.finish_reason not in (None, "stop") else end.finish_reason
    if before.usage is None or end.usage is None:
        return End(end.request_id, reason)
    counts = (a + b for a, b in zip(astuple(before.usage), astuple(end.usage), strict=True))
    return End(end.request_id, reason, Usage(*counts))
