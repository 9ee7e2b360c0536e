"""Calls other models through Triton (business logic scripting)."""

from typing import Any

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack

from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.request import RequestError, ServerStarting, Unavailable

SERVER_STARTS = "Server not ready"
# Words of several releases for a model that is loading, unloaded or missing.
MODEL_IS_GONE = ("no available versions", "is not ready", "is not found")


def call_model(call: ModelCall) -> list[torch.Tensor]:
    """interfaces.CallModel."""
    kind = pb_utils.TRITONSERVER_MEMORY_GPU if call.device.type == "cuda" else pb_utils.TRITONSERVER_MEMORY_CPU
    request = pb_utils.InferenceRequest(
        model_name=call.model,
        requested_output_names=call.outputs,
        inputs=[pb_utils.Tensor.from_dlpack(name, tensor) for name, tensor in call.inputs.items()],
        preferred_memory=pb_utils.PreferredMemory(kind, call.device.index or 0),
        parameters=call.parameters,
    )
    response = request.exec()
    if response.has_error():
        raise _model_error(call.model, response.error())
    return [from_dlpack(pb_utils.get_output_tensor_by_name(response, name).to_dlpack()) for name in call.outputs]


def _model_error(model: str, error: Any) -> RequestError:
    if SERVER_STARTS in error.message():
        return ServerStarting(f"{model}: {error.message()}")
    # A server that shuts down refuses calls of its own models; Triton reports some of these as INTERNAL.
    gone = error.code() == pb_utils.TritonError.UNAVAILABLE or any(sign in error.message() for sign in MODEL_IS_GONE)
    return (Unavailable if gone else RequestError)(f"{model}: {error.message()}")
