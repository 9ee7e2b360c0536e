"""The gateway's routes."""

import functools

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from qwen3_tts_gateway import openapi
from qwen3_tts_gateway.aborts import ResetAborted
from qwen3_tts_gateway.batch import BatchEndpoint
from qwen3_tts_gateway.cartesia.endpoint import CartesiaEndpoint
from qwen3_tts_gateway.cartesia.socket import CartesiaSocket
from qwen3_tts_gateway.errors import APIError
from qwen3_tts_gateway.handlers import crash_response, error_response, http_error_response
from qwen3_tts_gateway.log import AccessLog
from qwen3_tts_gateway.models import describe
from qwen3_tts_gateway.origins import SameOrigin
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.speech import SpeechEndpoint
from qwen3_tts_gateway.static import Page
from qwen3_tts_gateway.voices import VoiceEndpoints
from qwen3_tts_gateway.websocket import SpeechSocket

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def make_app(services: Services) -> Starlette:
    voices, page = VoiceEndpoints(services), Page()
    return Starlette(
        routes=[
            Route("/v1/audio/speech", SpeechEndpoint(services), methods=["POST"]),
            Route("/v1/audio/speech/batch", BatchEndpoint(services), methods=["POST"]),
            WebSocketRoute("/v1/audio/speech/stream", SpeechSocket(services)),
            WebSocketRoute("/tts/websocket", CartesiaSocket(services)),
            Route("/tts/bytes", CartesiaEndpoint(services), methods=["POST"]),
            Route("/v1/audio/voices", voices.list_all),
            Route("/v1/voices", voices.list_objects),
            Route("/v1/audio/voices", voices.create, methods=["POST"]),
            Route("/v1/audio/voices/{voice}", voices.delete, methods=["DELETE"]),
            Route("/v1/models", functools.partial(list_models, services)),
            Route("/v1/audio/models", functools.partial(list_speech_models, services)),
            Route("/v1/models/{model:path}", functools.partial(get_model, services)),
            Route("/healthz", functools.partial(health, services)),
            Route("/health", functools.partial(health, services)),
            Route("/livez", live),
            Route("/metrics", functools.partial(metrics, services)),
            *page.routes(),
            *openapi.routes(page),
        ],
        middleware=_middleware(services),
        exception_handlers={
            APIError: error_response,
            HTTPException: http_error_response,
            Exception: crash_response,
        },
    )


def _middleware(services: Services) -> list[Middleware]:
    origins, proxies = list(services.settings.cors_origins), services.settings.trusted_proxies
    cors = [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])]
    return [
        Middleware(ResetAborted),
        Middleware(AccessLog, metrics=services.metrics),
        *(cors if origins else []),
        Middleware(SameOrigin, allowed=origins, proxies=proxies),
    ]


async def list_models(services: Services, request: Request) -> JSONResponse:
    services.access.authenticate_list(request.headers)
    return JSONResponse({"object": "list", "data": services.models.listing()})


async def list_speech_models(services: Services, request: Request) -> JSONResponse:
    """Open WebUI's list."""
    services.access.authenticate_list(request.headers)
    return JSONResponse({"models": services.models.listing()})


async def get_model(services: Services, request: Request) -> JSONResponse:
    services.access.authenticate_list(request.headers)
    name = request.path_params["model"]
    return JSONResponse(describe(name, await services.models.resolve(name)))


async def health(services: Services, request: Request) -> JSONResponse:
    """200 when a Triton server is ready to speak."""
    ready = await services.backend.is_ready(services.models.default)
    return JSONResponse({"status": "ok" if ready else "no server is ready"}, 200 if ready else 503)


async def live(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


async def metrics(services: Services, request: Request) -> Response:
    return Response(services.metrics.page(), headers={"content-type": METRICS_TYPE})
