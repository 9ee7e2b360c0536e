"""The body of a speech response: audio, or server-sent events that carry it."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from starlette.types import Send

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import Usage
from qwen3_tts_gateway.audio.formats import NATIVE_RATE
from qwen3_tts_gateway.audio.pipeline import Pipeline
from qwen3_tts_gateway.backend import Speech
from qwen3_tts_gateway.errors import BODY_FIELDS, TransferAborted, from_speech
from qwen3_tts_gateway.log import Exchange
from qwen3_tts_gateway.words import Words, WordTimeline

SAMPLES_PER_FRAME = 1920


class Wire(Protocol):
    """How encoded audio, words, the end and an error are written."""

    media_type: str

    def audio(self, encoded: bytes) -> bytes: ...

    def words(self, words: Words) -> bytes: ...

    def done(self, speech: Speech) -> bytes: ...

    def error(self, error: SpeechError) -> bytes:
        """Raises TransferAborted if the body cannot carry an error."""


class AudioWire:
    def __init__(self, media_type: str) -> None:
        self.media_type = media_type

    def audio(self, encoded: bytes) -> bytes:
        return encoded

    def words(self, words: Words) -> bytes:
        return b""

    def done(self, speech: Speech) -> bytes:
        return b""

    def error(self, error: SpeechError) -> bytes:
        raise TransferAborted(str(error)) from None


class EventWire:
    """OpenAI's speech.audio.delta and speech.audio.done; vllm-omni's speech.audio.error; speech.audio.words.

    `fields` names the fields of tensors in errors.
    """

    media_type = "text/event-stream"

    def __init__(self, fields: Mapping[str, str] = BODY_FIELDS) -> None:
        self._fields = fields

    def audio(self, encoded: bytes) -> bytes:
        return _event({"type": "speech.audio.delta", "audio": base64.b64encode(encoded).decode()})

    def words(self, words: Words) -> bytes:
        return _event({"type": "speech.audio.words", "words": words})

    def done(self, speech: Speech) -> bytes:
        return _event({"type": "speech.audio.done", **ending(speech)})

    def error(self, error: SpeechError) -> bytes:
        return _event({"type": "speech.audio.error", "error": from_speech(error, self._fields).body})


def ending(speech: Speech) -> dict[str, Any]:
    """Fields of the message that ends audio."""
    end = speech.end
    return {"usage": usage(speech), "finish_reason": end.finish_reason, "spoken_share": end.spoken_share}


def usage(speech: Speech) -> dict[str, Any]:
    """Text tokens in, frames out. Servers that do not report them: frames from the samples, no tokens."""
    counts = speech.end.usage or Usage(-(-speech.samples // SAMPLES_PER_FRAME), 0, 0, 0)
    return {
        "input_tokens": counts.text_tokens,
        "output_tokens": counts.frames,
        "total_tokens": counts.text_tokens + counts.frames,
        "input_token_details": {"text_tokens": counts.text_tokens, "audio_tokens": 0},
    }


async def encoded_parts(
    speech: Speech, pipeline: Pipeline, timeline: WordTimeline
) -> AsyncGenerator[bytes | Words, None]:
    """Yields encoded audio, and words before the audio in which they begin or end. Raises SpeechError."""
    async for chunk in speech.chunks():
        if words := timeline.add(chunk.words):
            yield words
        if not len(chunk.pcm):
            continue
        async for encoded in pipeline.encode(chunk.pcm):
            if encoded:
                yield encoded
    if last := pipeline.finish():
        yield last


async def encoded_whole(speech: Speech, pipeline: Pipeline, timeline: WordTimeline) -> bytes:
    """All audio of an utterance. Raises SpeechError."""
    parts = [part async for part in encoded_parts(speech, pipeline, timeline) if isinstance(part, bytes)]
    return b"".join(parts)


async def send_body(
    send: Send,
    speech: Speech,
    pipeline: Pipeline,
    timeline: WordTimeline,
    wire: Wire,
    write_s: float,
    exchange: Exchange,
) -> None:
    """Sends a response of status 200 and records the outcome.

    Nothing is buffered here: while the client does not read, the gRPC stream is not read either. Raises
    TransferAborted for a failure, and for a client that takes nothing for `write_s`.
    """
    headers = [(b"content-type", wire.media_type.encode()), (b"x-sample-rate", str(pipeline.rate).encode())]
    headers += [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    exchange.outcome = "ok"
    try:
        async for part in encoded_parts(speech, pipeline, timeline):
            written = wire.audio(part) if isinstance(part, bytes) else wire.words(part)
            await _send_part(send, written, write_s)
        last = wire.done(speech)
    except SpeechError as error:
        exchange.outcome, exchange.error = error.outcome, str(error)
        last = wire.error(error)
    await send({"type": "http.response.body", "body": last, "more_body": False})


async def _send_part(send: Send, part: bytes, write_s: float) -> None:
    try:
        async with asyncio.timeout(write_s):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except TimeoutError:
        raise TransferAborted(f"the client took nothing for {write_s:g} s") from None


def audio_seconds(speech: Speech) -> float:
    return speech.samples / NATIVE_RATE


def _event(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
