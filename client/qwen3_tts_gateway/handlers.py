"""Responses to exceptions of endpoints."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from qwen3_tts_gateway.errors import APIError, refusal
from qwen3_tts_gateway.log import exchange_of


async def error_response(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, APIError)
    exchange_of(request.scope).error = error.detail
    return refusal(error)


async def http_error_response(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own 404 and 405."""
    assert isinstance(error, HTTPException)
    response = refusal(APIError(error.status_code, f"{request.method} {request.url.path}: {error.detail}"))
    response.headers.update(error.headers or {})
    return response


async def crash_response(request: Request, error: Exception) -> JSONResponse:
    return refusal(APIError(500, "the gateway failed", code="internal_error"))
