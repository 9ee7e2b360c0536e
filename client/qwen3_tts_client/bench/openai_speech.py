"""Benchmark target for OpenAI-compatible /v1/audio/speech endpoints (response_format pcm, mp3 or opus, streamed)."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from qwen3_tts_client.bench.encoded import CONTENT_TYPES, make_meter
from qwen3_tts_client.errors import ClientError, ExitCode, SpeechError
from qwen3_tts_client.protocol import SAMPLE_RATE, AudioChunk, SpeechRequest
from qwen3_tts_client.stream import Responses, Timeouts

# Field of SpeechRequest to JSON field. The first four are OpenAI's; the rest are extensions of Qwen3-TTS servers.
BODY_FIELDS = {
    "text": "input",
    "speaker": "voice",
    "voice": "voice",
    "instruct": "instructions",
    "language": "language",
    "ref_text": "ref_text",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "seed": "seed",
    "max_frames": "max_new_tokens",
}
_STATUS_OUTCOMES = {400: "invalid", 404: "invalid", 422: "invalid", 429: "unavailable", 503: "unavailable"}


class OpenAITarget:
    def __init__(
        self, url: str, endpoint: str, model_name: str, extra_inputs: dict[str, Any], timeouts: Timeouts
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(f"--url {url}: expected http://host:port")
        self._host = parts.hostname
        self._tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._endpoint = parts.path.rstrip("/") + endpoint
        self._extra = {"model": model_name, **extra_inputs}
        self._timeouts = timeouts
        self._format = extra_inputs.get("response_format", "pcm")
        if self._format not in CONTENT_TYPES:
            raise ClientError(
                f"--extra-inputs response_format {self._format!r}: unknown; choose one of {', '.join(CONTENT_TYPES)}"
            )

    async def open(self) -> None:
        try:
            _, writer = await self._connect()
        except SpeechError as error:
            raise ClientError(str(error), ExitCode.SERVER) from None
        writer.close()

    async def prepare(
        self, request: SpeechRequest, request_id: str, responses: Responses
    ) -> AsyncGenerator[tuple[int, AudioChunk], None]:
        body = json.dumps(speech_body(request, self._extra)).encode()
        head = (
            f"POST {self._endpoint} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        reader, writer = await self._connect()
        return self._speak(reader, writer, head.encode() + body)

    async def close(self) -> None:
        pass

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_connection(self._host, self._port, ssl=self._tls or None)
        except OSError as error:
            raise SpeechError("disconnected", f"{self._host}:{self._port}: {error.strerror or error}") from None

    async def _speak(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes
    ) -> AsyncGenerator[tuple[int, AudioChunk], None]:
        writer.write(message)
        meter = make_meter(self._format)
        parts = _body_parts(reader, CONTENT_TYPES[self._format])
        end_s = time.monotonic() + self._timeouts.stream_s
        try:
            while part := await _next_part(parts, end_s, self._timeouts):
                arrival_ns = time.perf_counter_ns()
                if len(pcm := meter.pcm(part)):
                    yield arrival_ns, AudioChunk(pcm, SAMPLE_RATE)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise SpeechError("disconnected", f"connection lost mid-stream: {error}") from None
        except (ValueError, IndexError, asyncio.LimitOverrunError):
            raise SpeechError("error", "the response is not HTTP/1.1") from None
        finally:
            writer.close()


def speech_body(request: SpeechRequest, extra: dict[str, Any]) -> dict[str, Any]:
    """The JSON body. Raises SpeechError for ref_audio, which each server takes in a different field."""
    if request.ref_audio is not None:
        raise SpeechError("invalid", "ref_audio: OpenAI endpoints differ in its field: use --extra-inputs")
    named = {field: getattr(request, name) for name, field in BODY_FIELDS.items() if getattr(request, name) is not None}
    # Servers differ in what `stream` alone returns: audio, or events that carry it.
    return {**named, "response_format": "pcm", "stream": True, "stream_format": "audio", **extra}


async def _next_part(parts: AsyncIterator[bytes], end_s: float, timeouts: Timeouts) -> bytes:
    """The next part of the body, empty at its end."""
    left_s = end_s - time.monotonic()
    try:
        return await asyncio.wait_for(anext(parts, b""), min(left_s, timeouts.chunk_s))
    except TimeoutError:
        if left_s < timeouts.chunk_s:
            raise SpeechError("timeout", f"the stream did not end within {timeouts.stream_s:g} s") from None
        raise SpeechError("timeout", f"no response for {timeouts.chunk_s:g} s") from None


async def _body_parts(reader: asyncio.StreamReader, content_types: tuple[str, ...]) -> AsyncIterator[bytes]:
    """The body as it arrives: one HTTP chunk at a time for chunked encoding, otherwise one read at a time."""
    status, headers = await _head(reader)
    parts = _chunks(reader) if headers.get("transfer-encoding", "").lower() == "chunked" else _reads(reader)
    if status != 200:
        text = b"".join([part async for part in parts]).decode(errors="replace")
        raise SpeechError(_STATUS_OUTCOMES.get(status, "error"), f"HTTP {status}: {text[:500]}")
    if not headers.get("content-type", "").startswith(content_types):
        raise SpeechError("error", f"expected {content_types[0]}, the server sent {headers.get('content-type')}")
    async for part in parts:
        yield part


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in fields}


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _reads(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(1 << 16):
        yield part
