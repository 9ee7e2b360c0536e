"""Errors as OpenAI's JSON body."""

import re

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from qwen3_tts_client.errors import SpeechError

# Tensor to field of the HTTP API, where the names differ.
FIELDS = {"text": "input", "speaker": "voice", "instruct": "instructions", "max_frames": "max_new_tokens"}
_FIELDS = FIELDS | {"x_vector_only": "x_vector_only_mode", "ref_sample_rate": "ref_audio"}
_STATUSES = {"invalid": 400, "unavailable": 503, "disconnected": 503, "timeout": 504, "cancelled": 499}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_PREFIX = re.compile(r"^(\[request id: .*?\] )?\s*(.*?\b(INVALID_ARG|UNAVAILABLE|CANCELLED|INTERNAL): )?")
RETRY_SECONDS = 1


class APIError(Exception):
    """A refused or failed request; `param` names the field."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}

    @property
    def body(self) -> dict[str, object]:
        kind = _TYPES.get(self.status, "server_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


class TransferAborted(Exception):
    """The response failed after its first byte; the server closes the connection without ending the body."""


def from_speech(error: SpeechError) -> APIError:
    """The model's message names the tensor; the answer names the field."""
    message = _PREFIX.sub("", str(error), count=1)
    if error.outcome == "unavailable" and message.startswith("busy"):
        return APIError(429, message, code="server_busy", retry_after_s=RETRY_SECONDS)
    status = _STATUSES.get(error.outcome, 500)
    if status != 400:
        retry_s = RETRY_SECONDS if status == 503 else None
        return APIError(status, message, code=error.outcome, retry_after_s=retry_s)
    tensor, _, rest = message.partition(": ")
    param = _FIELDS.get(tensor, tensor) if tensor.isidentifier() and rest else None
    return APIError(400, f"{param}: {rest}" if param else message, param, "invalid_value")


def refusal(error: APIError) -> JSONResponse:
    return JSONResponse({"error": error.body}, error.status, headers=error.headers)


async def error_response(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, APIError)
    return refusal(error)


async def http_error_response(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own 404 and 405."""
    assert isinstance(error, HTTPException)
    response = refusal(APIError(error.status_code, f"{request.method} {request.url.path}: {error.detail}"))
    response.headers.update(error.headers or {})
    return response
