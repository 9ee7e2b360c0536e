"""Triton's entry point to a reference encoder: adapts tensors and errors only."""

import gc
import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack

from encoder_program import guard, instance
from encoder_program.program import MODEL_FILE, ONNX_FILE, EncoderProgram, InvalidInputError, OnnxEncoder

log = logging.getLogger("encoder_program")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Loads and warms up the encoder; an error fails the load with a message that names it."""
        # Under MPS the codec has priority. CUDA reads the variable when it starts.
        os.environ.setdefault("CUDA_MPS_CLIENT_PRIORITY", "1")
        instance.log_through_triton(log, args["model_name"])
        device = instance.assigned_device(args)
        folder = Path(args["model_repository"]) / args["model_version"]
        executor = json.loads(args["model_config"])["parameters"]["executor"]["string_value"]
        self._program = _load(folder, executor, device)
        # Loaded objects live as long as the model.
        gc.collect()
        gc.freeze()
        # Started after everything that can fail the load, which Triton reports itself.
        self._guard = guard.start(args["model_name"])

    def finalize(self) -> None:
        if self._guard:
            self._guard.close()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        error = pb_utils.TritonError
        try:
            output = self._program(_tensors(request))
        except InvalidInputError as problem:
            return pb_utils.InferenceResponse(error=error(f"INVALID_ARG: {problem}", error.INVALID_ARG))
        except Exception as problem:
            log.exception("a reference could not be encoded")
            return pb_utils.InferenceResponse(error=error(str(problem), error.INTERNAL))
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(self._program.contract.output, output)])


def _load(folder: Path, executor: str, device: torch.device) -> EncoderProgram | OnnxEncoder:
    if executor == "onnxruntime":
        return OnnxEncoder.load(folder / ONNX_FILE)
    program = EncoderProgram.load(folder / MODEL_FILE, device)
    if device.type == "cuda":
        program.warm_up()
    return program


def _tensors(request: Any) -> dict[str, torch.Tensor]:
    return {tensor.name(): from_dlpack(tensor.to_dlpack()) for tensor in request.inputs()}
