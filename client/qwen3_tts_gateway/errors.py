"""Errors as OpenAI's JSON body."""

import re
from collections.abc import Mapping

from starlette.responses import JSONResponse

from qwen3_tts_client.errors import SpeechError, public_message

# Tensor to field of the JSON body, and of the form that registers a voice, where the names differ.
BODY_FIELDS = {
    "text": "input",
    "speaker": "voice",
    "instruct": "instructions",
    "max_frames": "max_new_tokens",
    "x_vector_only": "x_vector_only_mode",
    "ref_sample_rate": "ref_audio",
    "operation": "model",
}
FORM_FIELDS = {"voice": "name", "ref_audio": "audio_sample", "ref_sample_rate": "audio_sample", "operation": "model"}
# Refusals by CustomVoice and Base checkpoints.
_UNKNOWN_VOICE = re.compile(r"voice: .*: (unknown|no voice is registered)", re.DOTALL)
_STATUSES = {"invalid": 400, "unavailable": 503, "disconnected": 503, "timeout": 504, "cancelled": 499}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
RETRY_SECONDS = 1


class APIError(Exception):
    """A refused or failed request; `param` names the field, `detail` is for the log alone."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.detail = detail
        self.headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}

    @property
    def body(self) -> dict[str, object]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


class TransferAborted(Exception):
    """The response failed after its first byte; the server closes the connection without ending the body."""


def from_speech(error: SpeechError, fields: Mapping[str, str] = BODY_FIELDS) -> APIError:
    """The model's message names the tensor; the answer names the field."""
    message = public_message(error)
    status = _STATUSES.get(error.outcome, 500)
    if status == 400:
        return from_message(message, fields)
    if message.startswith("busy"):
        return APIError(429, message, code="server_busy", retry_after_s=RETRY_SECONDS, detail=str(error))
    retry_s = RETRY_SECONDS if status == 503 else None
    return APIError(status, message, code=error.outcome, retry_after_s=retry_s, detail=str(error))


def from_message(message: str, fields: Mapping[str, str] = BODY_FIELDS) -> APIError:
    """An error for a message of the form "tensor: reason"."""
    tensor, _, rest = message.partition(": ")
    if not (tensor.isidentifier() and rest):
        return APIError(400, message, code="invalid_value")
    param = fields.get(tensor, tensor)
    if tensor == "word_times":
        rest = rest.removeprefix("True: ")  # the field has another value
    named = f"{param}: {rest}"
    if param == "voice" and _UNKNOWN_VOICE.match(named):
        return APIError(404, named, param, "voice_not_found")
    return APIError(400, named, param, "invalid_value")


def refusal(error: APIError) -> JSONResponse:
    return JSONResponse({"error": error.body}, error.status, headers=error.headers)
