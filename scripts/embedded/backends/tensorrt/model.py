"""Stands in for Triton's TensorRT backend in the embedded server, with CUDA tensors in and out.

Uses this Python's TensorRT, or that of the Python in QWEN3_TTS_TENSORRT_PYTHON.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

# The server adds this folder to sys.path.
from merged_runs import Answer, Input, InvalidInputError, MergingModel, limits  # type: ignore[import-not-found]
from plan import Plan  # type: ignore[import-not-found]

from export.tensorrt.process import TENSORRT_PYTHON

DEFAULT_MODEL_FILENAME = "model.plan"


class TritonPythonModel:
    """Serves <repository>/<version>/<default_model_filename> of any model with the backend "tensorrt"."""

    def initialize(self, args: dict[str, str]) -> None:
        if args["model_instance_kind"] != "GPU":
            raise RuntimeError("the TensorRT backend supports only GPU instances, instance_group says otherwise")
        config = json.loads(args["model_config"])
        filename = config["default_model_filename"] or DEFAULT_MODEL_FILENAME
        device = torch.device("cuda", int(args["model_instance_device_id"]))
        torch.cuda.set_device(device)
        torch.set_num_threads(1)
        plan = open_plan(Path(args["model_repository"]) / args["model_version"] / filename, device)
        names = [declared["name"] for declared in config["input"]]
        inputs = tuple(Input(name, plan.dtypes[name], plan.dims[name], limits(config, name)) for name in names)
        self.model = MergingModel(inputs, config["max_batch_size"] > 0, plan.run, _concatenate)

    def execute(self, requests: list[Any]) -> list[Any]:
        feeds = [{tensor.name(): _tensor(tensor) for tensor in request.inputs()} for request in requests]
        answers = self.model.answer(feeds)
        return [_response(request, answer) for request, answer in zip(requests, answers, strict=True)]


def open_plan(path: Path, device: torch.device) -> Plan:
    """Raises RuntimeError if it was not built by that TensorRT on this GPU."""
    if python := os.environ.get(TENSORRT_PYTHON):
        from other_plan import OtherPlan  # type: ignore[import-not-found]

        return OtherPlan(path, device, Path(python))
    from own_plan import OwnPlan  # type: ignore[import-not-found]

    return OwnPlan(path, device)


def _concatenate(tensors: list[torch.Tensor]) -> torch.Tensor:
    on_gpu = next((tensor.device for tensor in tensors if tensor.is_cuda), tensors[0].device)
    return torch.cat([tensor.to(on_gpu) for tensor in tensors])


def _tensor(tensor: Any) -> torch.Tensor:
    return torch.utils.dlpack.from_dlpack(tensor.to_dlpack())


def _response(request: Any, answer: Answer) -> Any:
    if isinstance(answer, Exception):
        error = pb_utils.TritonError
        code = error.INVALID_ARG if isinstance(answer, InvalidInputError) else error.INTERNAL
        return pb_utils.InferenceResponse(error=error(str(answer), code))
    wanted = request.requested_output_names()
    return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(name, answer[name].contiguous()) for name in wanted])
