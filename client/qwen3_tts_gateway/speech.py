"""POST /v1/audio/speech."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_gateway.audio.encoder import complete
from qwen3_tts_gateway.audio.formats import FORMATS
from qwen3_tts_gateway.audio.pipeline import Pipeline
from qwen3_tts_gateway.backend import Speech
from qwen3_tts_gateway.body import AudioWire, EventWire, audio_seconds, encoded_whole, send_body
from qwen3_tts_gateway.config import Settings
from qwen3_tts_gateway.errors import APIError, from_speech
from qwen3_tts_gateway.log import Exchange, exchange_of
from qwen3_tts_gateway.parts import PartedSpeaker
from qwen3_tts_gateway.schema import BatchItem, SpeechBody, parse
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.tensors import check_length
from qwen3_tts_gateway.whole import verbose_response, word_headers
from qwen3_tts_gateway.words import WordTimeline


class SpeechEndpoint:
    """An ASGI application, because it watches for a disconnect from the first byte to the last."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, exchange = self._services, exchange_of(scope)
        request = Request(scope, receive)
        key = services.access.authenticate(request.headers)
        exchange.key = key.name
        body = self._body(await read_json(request, services.settings))
        model = await self._note(exchange, body)
        with services.access.stream(key):
            await services.access.spend_characters(key, len(body.input))
            gone = await until_disconnect(receive, self._speak(body, model, request, send))
        if gone:
            exchange.outcome = "cancelled"

    def _body(self, content: Any) -> SpeechBody:
        """Raises APIError."""
        body: SpeechBody = parse(SpeechBody, content)
        return body

    async def _note(self, exchange: Exchange, body: SpeechBody) -> str:
        """Records the request and returns its model. Raises APIError."""
        exchange.format, exchange.characters = body.response_format, len(body.input)
        if self._services.settings.log_text:
            exchange.text, exchange.voice = body.input, body.voice
        check_length(len(body.input), self._services.settings.max_input_characters, body.text_field)
        body.check_words()
        exchange.model = await self._services.models.resolve(body.model)
        return exchange.model

    async def _speak(self, body: SpeechBody, model: str, request: Request, send: Send) -> None:
        services, exchange = self._services, exchange_of(request.scope)
        pipeline = Pipeline(body.audio_format, body.sample_rate, body.speed, services.encoders)
        try:
            speech = await start_speech(services, body, model, exchange)
            try:
                await self._send(body, speech, pipeline, request, send)
            finally:
                await speech.close()
                exchange.audio_s, exchange.finish_reason = audio_seconds(speech), speech.end.finish_reason
                services.metrics.count_audio(body.audio_format, exchange.audio_s, pipeline.busy_s)
        except SpeechError as error:
            exchange.outcome = error.outcome
            raise from_speech(error, body.tensor_fields) from None

    async def _send(self, body: SpeechBody, speech: Speech, pipeline: Pipeline, request: Request, send: Send) -> None:
        """Raises SpeechError before the first byte."""
        timeline, media_type = WordTimeline(body.speed), FORMATS[body.audio_format].media_type
        if body.is_whole:
            encoded = complete(body.audio_format, await encoded_whole(speech, pipeline, timeline))
            if body.is_verbose:
                response: Response = verbose_response(encoded, pipeline.rate, timeline, speech)
            else:
                response = Response(encoded, media_type=media_type, headers=word_headers(timeline))
            response.headers["x-sample-rate"] = str(pipeline.rate)
            await response(request.scope, request.receive, send)
            return
        wire = EventWire(body.tensor_fields) if body.is_sse else AudioWire(media_type)
        limit_s = self._services.settings.chunk_seconds
        await send_body(send, speech, pipeline, timeline, wire, limit_s, exchange_of(request.scope))


async def start_speech(services: Services, body: SpeechBody | BatchItem, model: str, exchange: Exchange) -> Speech:
    """Raises SpeechError and APIError."""
    request = await services.builder.build(body, body.input, model)
    return await PartedSpeaker(services.backend, request, model, exchange.request_id, exchange.trace).speak()


async def read_json(request: Request, settings: Settings) -> Any:
    """Raises APIError 400, 408 or 413."""
    content = await limited(request, settings).body()
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise APIError(400, "the body is not JSON", code="invalid_json") from None


def limited(request: Request, settings: Settings) -> Request:
    """The request, whose body raises APIError 413 when it is too large and 408 when it stops coming."""
    limit, limit_s, received = settings.max_body_bytes, settings.chunk_seconds, 0

    async def receive() -> Message:
        nonlocal received
        try:
            message = await asyncio.wait_for(request.receive(), limit_s)
        except TimeoutError:
            raise APIError(408, f"nothing of the body came for {limit_s:g} s", code="timeout") from None
        received += len(message.get("body", b""))
        if received > limit:
            raise APIError(413, f"the body exceeds {limit} bytes", code="body_too_large")
        return message

    return Request(request.scope, receive)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Runs `work` and cancels it when the client disconnects. Returns whether it did."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return False
        return True
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
