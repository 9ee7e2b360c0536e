"""Calls other models through Triton (business logic scripting)."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.request import RequestError, ServerStarting, Unavailable

SERVER_STARTS = "Server not ready"
# Words of several releases for a model that is loading, unloaded or missing.
MODEL_IS_GONE = ("no available versions", "is not ready", "is not found")


def call_model(call: ModelCall) -> list[np.ndarray]:
    """interfaces.CallModel."""
    request = pb_utils.InferenceRequest(
        model_name=call.model,
        requested_output_names=call.outputs,
        inputs=[pb_utils.Tensor(name, array) for name, array in call.inputs.items()],
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        parameters=call.parameters,
    )
    response = request.exec()
    if response.has_error():
        raise _model_error(call.model, response.error())
    # Copies, since the response's memory ends with it.
    return [pb_utils.get_output_tensor_by_name(response, name).as_numpy().copy() for name in call.outputs]


def _model_error(model: str, error: Any) -> RequestError:
    if SERVER_STARTS in error.message():
        return ServerStarting(f"{model}: {error.message()}")
    # A server that shuts down refuses calls of its own models; Triton reports some of these as INTERNAL.
    gone = error.code() == pb_utils.TritonError.UNAVAILABLE or any(sign in error.message() for sign in MODEL_IS_GONE)
    return (Unavailable if gone else RequestError)(f"{model}: {error.message()}")
