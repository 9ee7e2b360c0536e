"""Calls of other models, and their errors in the words of several releases of Triton."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.interfaces import ModelCall
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


def test_outputs_outlive_their_response(adapter: Callable[..., Any]) -> None:
    memory = np.arange(3, dtype=np.int16)
    response = SimpleNamespace(has_error=lambda: False, as_numpy=lambda: memory)
    utilities = SimpleNamespace(
        TRITONSERVER_MEMORY_CPU=0,
        PreferredMemory=lambda kind, number: None,
        Tensor=lambda name, values: (name, values),
        InferenceRequest=lambda **fields: SimpleNamespace(exec=lambda: response),
        get_output_tensor_by_name=lambda response, name: response,
    )
    [pcm] = adapter("bls", utilities).call_model(ModelCall("code2wav", {"codes": memory}, ["pcm"]))
    memory[:] = 0
    assert pcm.tolist() == [0, 1, 2]
