"""Triton's entry to the codec step: adapts tensors and errors, nothing else."""

import gc
import json
import logging
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

from code2wav_step import guard, startup
from code2wav_step.requests import CODES, HISTORY, PLACES, STATE, STATES, InvalidInputError, RequestReader
from code2wav_step.shared_states import SharedStates

WAVEFORM, STATE_OUT = "waveform", "state_out"
PCM = "pcm"
log = logging.getLogger("code2wav_step")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Load and capture everything; whatever is wrong fails the load with a message that names it."""
        _log_through_triton()
        device = _assigned_device(args)
        folder = Path(args["model_repository"]) / args["model_version"]
        weights = startup.load_weights(folder / startup.MODEL_FILE, device)
        self._reader = RequestReader(weights.config)
        self._shared = SharedStates(device, weights.config.state_size)
        # Its own, so that waiting for an answer waits for nothing else.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        with torch.cuda.stream(self._stream):
            self._runner = startup.make_runner(weights, device)
        # What is loaded lives as long as the model: no collection is to look at it under traffic.
        gc.collect()
        gc.freeze()
        # Behind all that fails a load, which is Triton's to answer.
        self._guard = guard.start(args["model_name"])

    def finalize(self) -> None:
        if self._guard:
            self._guard.close()

    def execute(self, requests: list[Any]) -> list[Any]:
        # One after the other: a caller with several streams sends them as one request.
        with torch.cuda.stream(self._stream):
            answers = [self._answer(request, is_only=len(requests) == 1) for request in requests]
            if self._stream:
                # The caller may be another process, which knows nothing of this stream.
                self._stream.synchronize()
        return answers

    def _answer(self, request: Any, *, is_only: bool) -> Any:
        error = pb_utils.TritonError
        try:
            tensors = _tensors(request)
            make = self._advance if PLACES in tensors else self._step
            answer = make(request, tensors, is_only=is_only)
            # A request that names no outputs asks for those of both kinds.
            wanted = [name for name in request.requested_output_names() if name in answer]
            if not wanted:
                raise InvalidInputError(
                    f"{', '.join(answer)} can be made from {', '.join(sorted(tensors))}, nothing else"
                )
        except InvalidInputError as problem:
            return pb_utils.InferenceResponse(error=error(f"INVALID_ARG: {problem}", error.INVALID_ARG))
        except Exception as problem:
            log.exception("a step failed")
            return pb_utils.InferenceResponse(error=error(str(problem), error.INTERNAL))
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(name, answer[name]) for name in wanted])

    # Triton copies the outputs before it brings further requests: what a request on its own gets need not outlive it.

    def _step(self, request: Any, tensors: dict[str, torch.Tensor], *, is_only: bool) -> dict[str, torch.Tensor]:
        """The pure function: states come and go with the request."""
        run = self._runner.lend if is_only else self._runner
        return dict(zip((WAVEFORM, STATE_OUT), run(*self._reader.read(tensors)), strict=True))

    def _advance(self, request: Any, tensors: dict[str, torch.Tensor], *, is_only: bool) -> dict[str, torch.Tensor]:
        """The same on states that stay in the talker's memory."""
        address = json.loads(request.parameters() or "{}").get(STATES)
        if not isinstance(address, str):
            raise InvalidInputError(f"{STATES}: missing; {PLACES} are rows of the states that this parameter names")
        pcm = self._runner.advance(*self._reader.read_shared(tensors, self._shared.find(address)))
        if not is_only:
            if self._stream:
                self._stream.synchronize()
            pcm = pcm.clone()
        return {PCM: pcm}


def _tensors(request: Any) -> dict[str, torch.Tensor]:
    found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in (CODES, STATE, HISTORY, PLACES)}
    return {name: torch.from_dlpack(tensor.to_dlpack()) for name, tensor in found.items() if tensor is not None}


def _assigned_device(args: dict[str, str]) -> torch.device:
    if args["model_instance_kind"] != "GPU":
        # The talker needs the other cores.
        torch.set_num_threads(2)
        return torch.device("cpu")
    device = torch.device("cuda", int(args["model_instance_device_id"]))
    torch.cuda.set_device(device)
    torch.set_num_threads(1)
    return device


class _TritonHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        write = pb_utils.Logger.log_info if record.levelno < logging.WARNING else pb_utils.Logger.log_warn
        write(f"code2wav: {self.format(record)}")


def _log_through_triton() -> None:
    log.handlers, log.propagate = [_TritonHandler()], False
    log.setLevel(logging.INFO)
