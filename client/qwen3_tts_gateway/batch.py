"""POST /v1/audio/speech/batch: vllm-omni's batch, whose utterances are spoken at once and answered together."""

import asyncio
import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_gateway.access import Key
from qwen3_tts_gateway.audio.encoder import complete
from qwen3_tts_gateway.audio.formats import FORMATS
from qwen3_tts_gateway.audio.pipeline import Pipeline
from qwen3_tts_gateway.body import audio_seconds, encoded_whole, usage
from qwen3_tts_gateway.errors import APIError, from_speech
from qwen3_tts_gateway.log import Exchange, exchange_of, record
from qwen3_tts_gateway.schema import BatchBody, BatchItem, parse
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.speech import read_json, start_speech, until_disconnect
from qwen3_tts_gateway.tensors import check_length
from qwen3_tts_gateway.words import WordTimeline


class BatchEndpoint:
    """An ASGI application, because it watches for a disconnect."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, exchange = self._services, exchange_of(scope)
        request = Request(scope, receive)
        key = services.access.authenticate(request.headers)
        exchange.key = key.name
        items = self._items(await read_json(request, services.settings))
        exchange.model = await services.models.resolve(items[0].model)
        exchange.characters = sum(len(item.input) for item in items)
        await services.access.spend_characters(key, exchange.characters)
        batch = Batch(services, key, exchange, exchange.model)

        async def answer() -> None:
            await JSONResponse(await batch.speak(items))(scope, receive, send)

        if await until_disconnect(receive, answer()):
            exchange.outcome = "cancelled"

    def _items(self, fields: Any) -> list[BatchItem]:
        """Raises APIError."""
        settings, body = self._services.settings, parse(BatchBody, fields)
        if len(body.items) > settings.max_batch_items:
            reason = f"items: {len(body.items)} items, at most {settings.max_batch_items} are allowed"
            raise APIError(400, reason, "items", "invalid_value")
        items = [parse(BatchItem, fields) for fields in body.merged()]
        for index, item in enumerate(items):
            check_length(len(item.input), settings.max_input_characters, f"items.{index}.input")
        return items


class Batch:
    def __init__(self, services: Services, key: Key, exchange: Exchange, model: str) -> None:
        self._services = services
        self._key = key
        self._exchange = exchange
        self._model = model
        # Items beyond the key's share wait for the others instead of being refused.
        self._turns = asyncio.Semaphore(services.access.max_streams(key))

    async def speak(self, items: list[BatchItem]) -> dict[str, Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._result(index, item)) for index, item in enumerate(items)]
        results = [task.result() for task in tasks]
        succeeded = sum(result["status"] == "success" for result in results)
        counts = {"total": len(results), "succeeded": succeeded, "failed": len(results) - succeeded}
        return {"id": f"speech-batch-{self._exchange.request_id}", "results": results, **counts}

    async def _result(self, index: int, item: BatchItem) -> dict[str, Any]:
        exchange = self._item_exchange(index, item)
        try:
            async with self._turns:
                with self._services.access.stream(self._key):
                    return {"index": index, "status": "success", **await self._speak(item, exchange)}
        except SpeechError as error:
            refused = from_speech(error, item.tensor_fields)
            exchange.outcome, exchange.error = error.outcome, refused.detail
            return {"index": index, "status": "error", "error": refused.message}
        except APIError as error:
            exchange.outcome = "refused"
            return {"index": index, "status": "error", "error": error.message}
        except asyncio.CancelledError:
            exchange.outcome = "cancelled"
            raise
        finally:
            record(exchange, self._services.metrics)

    async def _speak(self, item: BatchItem, exchange: Exchange) -> dict[str, Any]:
        """Raises SpeechError and APIError."""
        services = self._services
        pipeline = Pipeline(item.response_format, item.sample_rate, item.speed, services.encoders)
        timeline = WordTimeline(item.speed)
        speech = await start_speech(services, item, self._model, exchange)
        try:
            encoded = await encoded_whole(speech, pipeline, timeline)
        finally:
            await speech.close()
            exchange.audio_s, exchange.finish_reason = audio_seconds(speech), speech.end.finish_reason
            services.metrics.count_audio(item.response_format, exchange.audio_s, pipeline.busy_s)
        audio = base64.b64encode(complete(item.response_format, encoded)).decode()
        words = {"words": timeline.words} if item.words_field else {}
        media_type = FORMATS[item.response_format].media_type
        return {"audio_data": audio, "media_type": media_type, "usage": usage(speech), **words}

    def _item_exchange(self, index: int, item: BatchItem) -> Exchange:
        """The log record of one item."""
        batch = self._exchange
        exchange = Exchange(f"{batch.request_id}-{index}", batch.path, batch.method, batch.trace)
        exchange.key, exchange.model = batch.key, batch.model
        exchange.format, exchange.characters = item.response_format, len(item.input)
        if self._services.settings.log_text:
            exchange.text, exchange.voice = item.input, item.voice
        return exchange
