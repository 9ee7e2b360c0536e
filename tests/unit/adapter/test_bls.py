"""Errors of calls of other models, in the words of several releases of Triton."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qwen3_tts_engine.request import RequestError, ServerStarting, Unavailable

CODES = SimpleNamespace(INTERNAL=1, UNAVAILABLE=2, NOT_FOUND=3)


@pytest.mark.parametrize(
    ("message", "code", "expected"),
    [
        ("Server not ready", CODES.INTERNAL, ServerStarting),
        ("Request for unknown model: 'code2wav' has no available versions", CODES.INTERNAL, Unavailable),
        ("Request for unknown model: 'code2wav' is not found", CODES.NOT_FOUND, Unavailable),
        ("Model code2wav - Error when running inference: … 'code2wav' is not found", CODES.INTERNAL, Unavailable),
        ("any", CODES.UNAVAILABLE, Unavailable),
        ("a step failed", CODES.INTERNAL, RequestError),
    ],
)
def test_a_model_that_is_not_there_is_unavailable(
    adapter: Callable[..., Any], message: str, code: int, expected: type[RequestError]
) -> None:
    bls = adapter("bls", SimpleNamespace(TritonError=CODES))
    found = bls._model_error("code2wav", SimpleNamespace(message=lambda: message, code=lambda: code))
    assert type(found) is expected
    assert str(found) == f"code2wav: {message}"
