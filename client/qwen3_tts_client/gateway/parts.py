"""A text that is too long for one request of the model is spoken in parts, one after the other."""

import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import astuple, replace

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.gateway.backend import Backend, Metadata, Speech
from qwen3_tts_client.gateway.body import SAMPLES_PER_FRAME
from qwen3_tts_client.protocol import AudioChunk, End, SpeechRequest, Usage, encode
from qwen3_tts_client.stream import Responses

# The model alone counts tokens; its refusal tells how many of them, or of characters, a request may have.
_TOO_LONG = re.compile(
    r"INVALID_ARG: text: .*: ((?P<tokens>\d+) tokens, at most (?P<limit>\d+) are allowed"
    r"|at most (?P<length>\d+) characters)\Z",
    re.DOTALL,
)
# Of sentences, clauses and words, in this order, wherever a part can end.
_ENDS = (
    re.compile(r"[.!?…]+[\"'”’»)\]]*\s+|[。！？]+[」』”’）]*|\n+"),
    re.compile(r"[,;:]\s+|[、，；：]|\s[–—-]\s"),
    re.compile(r"\s+"),
)
# Tokens are not spread evenly over a text.
_MARGIN = 0.9
StartPart = Callable[[SpeechRequest], Awaitable[Speech]]


async def speak_in_parts(
    backend: Backend, request: SpeechRequest, model: str, request_id: str, metadata: Metadata = ()
) -> Speech:
    """As Backend.start for one request, whose text may be too long for the model. Raises SpeechError."""

    async def start(part: SpeechRequest) -> Speech:
        message = encode(part, model, request_id)
        return await backend.start(lambda: [message], metadata)

    responses = Responses()
    chunks = _chunks(start, request, responses)
    try:
        return Speech(await anext(chunks, None), chunks, responses)
    except BaseException:
        await chunks.aclose()
        raise


async def _chunks(start: StartPart, request: SpeechRequest, responses: Responses) -> AsyncGenerator[AudioChunk, None]:
    texts = deque([request.text])
    samples, left = 0, request.max_frames
    while texts and left != 0:
        part = replace(request, text=texts.popleft(), max_frames=left)
        try:
            speech = await start(part)
        except SpeechError as error:
            texts.extendleft(reversed(_split(part.text, error)))
            continue
        try:
            async for chunk in speech.chunks():
                yield chunk
        finally:
            await speech.close()
        samples += speech.samples
        if request.max_frames is not None:
            left = max(0, request.max_frames - samples // SAMPLES_PER_FRAME)
        responses.end = _join(responses.end, speech.end)


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


def split(text: str, size: int) -> list[str]:
    """Parts of at most `size` characters that end with a sentence, or else with a clause or a word."""
    parts: list[str] = []
    while len(text) > size:
        end = _end(text, size)
        parts.append(text[:end])
        text = text[end:]
    return [part for part in (*parts, text) if part.strip()]


def _end(text: str, size: int) -> int:
    for ends in _ENDS:
        found = [match.end() for match in ends.finditer(text, 0, size)]
        if found and found[-1] > size // 2:
            return found[-1]
    return size


def _join(before: End | None, end: End) -> End:
    """The first reason other than stop counts, as in the model's own parts."""
    if before is None:
        return end
    reason = before.finish_reason if before.finish_reason not in (None, "stop") else end.finish_reason
    if before.usage is None or end.usage is None:
        return End(end.request_id, reason)
    counts = (a + b for a, b in zip(astuple(before.usage), astuple(end.usage), strict=True))
    return End(end.request_id, reason, Usage(*counts))
