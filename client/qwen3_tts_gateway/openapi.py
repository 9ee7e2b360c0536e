"""The OpenAPI document, and the page that shows it."""

from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from qwen3_tts_client import __version__
from qwen3_tts_gateway.audio.formats import FORMATS
from qwen3_tts_gateway.body import EventWire
from qwen3_tts_gateway.cartesia.schema import Generation
from qwen3_tts_gateway.schema import BatchBody, SpeechBody
from qwen3_tts_gateway.static import Page

Object = dict[str, Any]
_REF = "#/components/schemas/"
_TEXT = {"type": "string"}
_MODEL = {"name": "model", "in": "query", "schema": _TEXT}
_JSON: Object = {"application/json": {"schema": {"type": "object"}}}
_AUDIO: Object = {audio.media_type: {} for audio in FORMATS.values()} | {EventWire.media_type: {}} | _JSON
_VOICE_FORM = {
    "type": "object",
    "properties": dict.fromkeys(("name", "consent", "ref_text", "model"), _TEXT)
    | {"audio_sample": {"type": "string", "format": "binary"}},
    "required": ["name", "audio_sample"],
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "object", "properties": dict.fromkeys(("message", "type", "param", "code"), _TEXT)}
    },
}


def document() -> Object:
    """Paths of HTTP; the WebSocket is not among them, as OpenAPI has none."""
    _, schemas = models_json_schema(
        [(SpeechBody, "validation"), (BatchBody, "validation"), (Generation, "validation")],
        ref_template=_REF + "{model}",
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Qwen3-TTS gateway", "version": __version__},
        "security": [{"key": []}],
        "paths": _paths(),
        "components": {
            "schemas": schemas["$defs"] | {"Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> Object:
    voices = {
        "get": _operation("List the speakers or the registered voices", query=[_MODEL]),
        "post": _operation("Register a voice", {"multipart/form-data": {"schema": _VOICE_FORM}}),
    }
    return {
        "/v1/audio/speech": {"post": _operation("Speak a text", _json_of("SpeechBody"), _AUDIO)},
        "/v1/audio/speech/batch": {"post": _operation("Speak several texts", _json_of("BatchBody"))},
        "/tts/bytes": {"post": _operation("Speak a text for clients of Cartesia", _json_of("Generation"), _AUDIO)},
        "/v1/audio/voices": voices,
        "/v1/audio/voices/{voice}": {"delete": _operation("Delete a registered voice", path=["voice"], query=[_MODEL])},
        "/v1/voices": {"get": _operation("List the voices as objects", query=[_MODEL])},
        "/v1/models": {"get": _operation("List the models and their aliases")},
        "/v1/models/{model}": {"get": _operation("Describe a model", path=["model"])},
        "/v1/audio/models": {"get": _operation("List the models for Open WebUI")},
        "/healthz": {"get": _operation("Whether a Triton server is ready")},
        "/health": {"get": _operation("The same as /healthz")},
        "/livez": {"get": _operation("Whether the gateway runs")},
        "/metrics": {"get": _operation("Metrics of Prometheus", answer={"text/plain": {}})},
    }


def _operation(
    summary: str,
    body: Object | None = None,
    answer: Object = _JSON,
    path: list[str] | None = None,
    query: list[Object] | None = None,
) -> Object:
    in_path = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in path or []]
    error = {"description": "Error", "content": {"application/json": {"schema": {"$ref": f"{_REF}Error"}}}}
    return {
        "summary": summary,
        "parameters": in_path + (query or []),
        **({"requestBody": {"required": True, "content": body}} if body else {}),
        "responses": {"200": {"description": "OK", "content": answer}, "default": error},
    }


def _json_of(schema: str) -> Object:
    return {"application/json": {"schema": {"$ref": _REF + schema}}}


def routes(page: Page) -> list[Route]:
    content = document()

    async def send(request: Request) -> JSONResponse:
        return JSONResponse(content)

    return [Route("/openapi.json", send), Route("/docs", page.sender("docs.html"))]
