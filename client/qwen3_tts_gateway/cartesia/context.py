"""One context of a connection: a text that arrives in pieces, and its audio and words."""

import asyncio
import base64
import time
from typing import Any

from starlette.websockets import WebSocket

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.pieces import TextFeed
from qwen3_tts_gateway.access import Key
from qwen3_tts_gateway.backend import Speech
from qwen3_tts_gateway.cartesia.schema import FIELDS, Generation
from qwen3_tts_gateway.errors import APIError, from_speech
from qwen3_tts_gateway.log import Exchange, record
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.utterance import speak_pieces
from qwen3_tts_gateway.words import Words, WordTimeline

CONTINUES, COMPLETE = 206, 200  # status_code of messages


class Context:
    """Raises APIError for options that are wrong."""

    def __init__(self, first: Generation, websocket: WebSocket, context_id: str) -> None:
        self.text = TextFeed()
        self._options = first.options()
        self._is_buffered = first.is_buffered
        self._websocket = websocket
        self._context_id = context_id

    def add(self, generation: Generation) -> None:
        text = generation.transcript
        if text and self.text.pieces and not self._is_buffered:
            is_apart = text[0].isspace() or self.text.pieces[-1][-1].isspace()
            text = text if is_apart else f" {text}"
        if text:
            self.text.append(text)
        if not generation.is_continued:
            self.text.end()

    async def speak(self, services: Services, key: Key, exchange: Exchange) -> None:
        exchange.key, exchange.format = key.name, self._options.response_format
        output = _Output(self._websocket, self._context_id)
        timeline = WordTimeline(self._options.speed)
        try:
            if not await self.text.begins():
                await output.end()
                return
            with services.access.stream(key):
                await speak_pieces(services, self._options, self.text, timeline, exchange, output)
        except asyncio.CancelledError:
            exchange.outcome = "cancelled"
            raise
        except SpeechError as error:
            refused = from_speech(error, FIELDS)
            exchange.outcome, exchange.error = error.outcome, refused.detail
            await send_error(self._websocket, refused, self._context_id)
        except APIError as error:
            exchange.outcome = "refused"
            await send_error(self._websocket, error, self._context_id)
        finally:
            record(exchange, services.metrics)


class _Output:
    def __init__(self, websocket: WebSocket, context_id: str) -> None:
        self._websocket = websocket
        self._context_id = context_id
        self._sent_s = time.monotonic()

    async def audio(self, encoded: bytes, rate: int) -> None:
        sent_s, self._sent_s = self._sent_s, time.monotonic()
        step_ms = round((self._sent_s - sent_s) * 1000, 3)
        await self._send("chunk", data=base64.b64encode(encoded).decode(), step_time=step_ms)

    async def words(self, words: Words, rate: int) -> None:
        """Sends words that have ended; one of unknown time is left out, as clients expect numbers."""
        timed = [word for word in words if None not in (word["start"], word.get("end"))]
        if timed:
            columns = {"words": "word", "start": "start", "end": "end"}
            await self._send(
                "timestamps", word_timestamps={name: [word[key] for word in timed] for name, key in columns.items()}
            )

    async def done(self, speech: Speech) -> None:
        await self.end()

    async def end(self) -> None:
        await self._send("done", done=True, status_code=COMPLETE)

    async def _send(self, kind: str, **fields: Any) -> None:
        state = {"type": kind, "done": False, "status_code": CONTINUES, "context_id": self._context_id}
        await self._websocket.send_json(state | fields)


async def send_error(websocket: WebSocket, error: APIError, context_id: str | None) -> None:
    """`error` is that of API versions before 2026."""
    body = {"type": "error", "done": True, "status_code": error.status, "context_id": context_id}
    texts = {"title": error.body["type"], "message": error.message, "error": error.message, "error_code": error.code}
    await websocket.send_json(body | texts)
