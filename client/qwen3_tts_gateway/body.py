"""The body of a speech response: audio, or server-sent events that carry it."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

from starlette.types import Send

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import Usage
from qwen3_tts_gateway.audio.formats import NATIVE_RATE
from qwen3_tts_gateway.audio.pipeline import Pipeline
from qwen3_tts_gateway.backend import Speech
from qwen3_tts_gateway.errors import TransferAborted, from_speech
from qwen3_tts_gateway.log import Exchange

SAMPLES_PER_FRAME = 1920


class Wire(Protocol):
    """How encoded audio, the end and an error are written."""

    media_type: str

    def audio(self, encoded: bytes) -> bytes: ...

    def done(self, speech: Speech) -> bytes: ...

    def error(self, error: SpeechError) -> bytes:
        """Raises TransferAborted if the body cannot carry an error."""


class AudioWire:
    def __init__(self, media_type: str) -> None:
        self.media_type = media_type

    def audio(self, encoded: bytes) -> bytes:
        return encoded

    def done(self, speech: Speech) -> bytes:
        return b""

    def error(self, error: SpeechError) -> bytes:
        raise TransferAborted(str(error)) from None


class EventWire:
    """OpenAI's speech.audio.delta and speech.audio.done; vllm-omni's speech.audio.error."""

    media_type = "text/event-stream"

    def audio(self, encoded: bytes) -> bytes:
        return _event({"type": "speech.audio.delta", "audio": base64.b64encode(encoded).decode()})

    def done(self, speech: Speech) -> bytes:
        return _event({"type": "speech.audio.done", **ending(speech)})

    def error(self, error: SpeechError) -> bytes:
        return _event({"type": "speech.audio.error", "error": from_speech(error).body})


def ending(speech: Speech) -> dict[str, Any]:
    """Fields of the message that ends audio."""
    return {"usage": usage(speech), "finish_reason": speech.end.finish_reason}


def usage(speech: Speech) -> dict[str, Any]:
    """Text tokens in, frames out. Servers that do not report them: frames from the samples, no tokens."""
    counts = speech.end.usage or Usage(-(-speech.samples // SAMPLES_PER_FRAME), 0, 0, 0)
    return {
        "input_tokens": counts.text_tokens,
        "output_tokens": counts.frames,
        "total_tokens": counts.text_tokens + counts.frames,
        "input_token_details": {"text_tokens": counts.text_tokens, "audio_tokens": 0},
    }


async def encoded_chunks(speech: Speech, pipeline: Pipeline) -> AsyncIterator[bytes]:
    """Raises SpeechError."""
    async for chunk in speech.chunks():
        async for encoded in pipeline.encode(chunk.pcm):
            if encoded:
                yield encoded
    if last := pipeline.finish():
        yield last


async def send_body(
    send: Send, speech: Speech, pipeline: Pipeline, wire: Wire, write_s: float, exchange: Exchange
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
        async for encoded in encoded_chunks(speech, pipeline):
            await _send_part(send, wire.audio(encoded), write_s)
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
