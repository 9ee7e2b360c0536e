"""GET, POST and DELETE /v1/audio/voices, in OpenAI's form and in vllm-omni's at once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse

from qwen3_tts_client.checkpoints import LIST_VOICES
from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import SpeechRequest
from qwen3_tts_gateway.audio.reference import decode_file
from qwen3_tts_gateway.errors import BODY_FIELDS, FORM_FIELDS, APIError, from_speech
from qwen3_tts_gateway.log import exchange_of
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.speech import limited
from qwen3_tts_gateway.tensors import check_cloning

MAX_FIELDS = 16
MAX_FIELD_BYTES = 64 << 10


class VoiceEndpoints:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def list_all(self, request: Request) -> JSONResponse:
        """`voices` are names for vllm-omni's clients, objects for Open WebUI."""
        agent = request.headers.get("user-agent", "")
        page = await self._list(request)
        if any(name in agent for name in self._services.settings.voice_objects_for):
            page["voices"] = page["data"]
        return JSONResponse(page, headers={"vary": "user-agent"})

    async def list_objects(self, request: Request) -> JSONResponse:
        page = await self._list(request)
        return JSONResponse(page | {"voices": page["data"]})

    async def _list(self, request: Request) -> dict[str, Any]:
        exchange = exchange_of(request.scope)
        exchange.key = self._services.access.authenticate_list(request.headers).name
        exchange.model = model = await self._services.models.resolve(request.query_params.get("model"))
        models, settings = self._services.models, self._services.settings
        with _api_errors():
            mode = await models.mode(model)
            cloned = await self._services.backend.operate(LIST_VOICES, model) if mode == "Base" else []
            named = list(await models.speakers(model)) if mode == "CustomVoice" else []
        data = [_voice(name, 0) for name in named] + [_openai_voice(voice) for voice in cloned]
        uploaded = [_uploaded(voice) for voice in cloned]
        names = named + [voice["name"] for voice in cloned]
        page = {"task_type": mode, "languages": list(settings.languages), "cloning": settings.cloning}
        return {"object": "list", "data": data, "voices": names, "uploaded_voices": uploaded} | page

    async def create(self, request: Request) -> JSONResponse:
        self._services.access.authenticate(request.headers)
        async with limited(request, self._services.settings).form(
            max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
        ) as form:
            model = await self._enter(request, _text(form, "model"))
            voice = await self._registration(form)
        with _api_errors(FORM_FIELDS):
            [created] = await self._services.backend.operate(voice, model)
        return JSONResponse(_openai_voice(created) | {"success": True, "voice": _uploaded(created)})

    async def delete(self, request: Request) -> JSONResponse:
        model = await self._enter(request, request.query_params.get("model"))
        name = request.path_params["voice"]
        with _api_errors():
            await self._services.backend.operate(SpeechRequest("", voice=name, operation="delete_voice"), model)
        deleted = {"id": name, "object": "audio.voice.deleted", "deleted": True}
        return JSONResponse(deleted | {"success": True, "message": f"voice {name!r} is deleted"})

    async def _enter(self, request: Request, model: str | None) -> str:
        """Checks the key and returns the model. Raises APIError."""
        exchange = exchange_of(request.scope)
        exchange.key = self._services.access.authenticate(request.headers).name
        exchange.model = await self._services.models.resolve(model)
        return exchange.model

    async def _registration(self, form: FormData) -> SpeechRequest:
        """The operation that registers a voice; without ref_text only its x-vector is used. Raises APIError."""
        check_cloning(self._services.settings, _text(form, "consent"))
        name, sample = _text(form, "name"), form.get("audio_sample")
        if not name:
            raise APIError(400, "name: required", "name", "missing")
        if not isinstance(sample, UploadFile):
            raise APIError(400, "audio_sample: required, a file", "audio_sample", "missing")
        samples, rate = await decode_file(await sample.read(), "audio_sample", self._services.encoders.executor)
        ref_text = _text(form, "ref_text")
        return SpeechRequest(
            "",
            operation="register_voice",
            voice=name,
            ref_audio=samples,
            ref_sample_rate=rate,
            ref_text=ref_text,
            x_vector_only=None if ref_text else True,
        )


@contextmanager
def _api_errors(fields: Mapping[str, str] = BODY_FIELDS) -> Iterator[None]:
    """Raises APIError for a SpeechError."""
    try:
        yield
    except SpeechError as error:
        raise from_speech(error, fields) from None


def _text(form: FormData, name: str) -> str | None:
    value = form.get(name)
    return value if isinstance(value, str) and value else None


def _voice(name: str, created_at: int) -> dict[str, Any]:
    return {"id": name, "object": "audio.voice", "name": name, "created_at": created_at, "type": "audio_sample"}


def _openai_voice(voice: dict[str, Any]) -> dict[str, Any]:
    return _voice(voice["name"], _unix_s(voice))


def _uploaded(voice: dict[str, Any]) -> dict[str, Any]:
    text = {"ref_text": voice["ref_text"]} if voice.get("ref_text") else {}
    return {"name": voice["name"], "created_at": _unix_s(voice), **text}


def _unix_s(voice: dict[str, Any]) -> int:
    return int(datetime.fromisoformat(voice["created"]).timestamp())
