"""Triton's entry point to the codec step: adapts tensors and errors only."""

import gc
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from code2wav_step import guard, instance, startup
from code2wav_step.line import Line
from code2wav_step.requests import InvalidInputError, RequestReader, SharedRequest
from code2wav_step.shared_states import SharedStates

log = logging.getLogger("code2wav_step")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Loads the weights and captures the graphs; an error fails the load with a message that names it."""
        # Before the first CUDA call, which reads it: under MPS the codec (0, normal) goes before the talker (1).
        os.environ.setdefault("CUDA_MPS_CLIENT_PRIORITY", "0")
        instance.log_through_triton(log, args["model_name"])
        device = instance.assigned_device(args)
        folder = Path(args["model_repository"]) / args["model_version"]
        weights = startup.load_weights(folder / startup.MODEL_FILE, device)
        self._contract = weights.config.contract
        self._reader = RequestReader(weights.config)
        self._sizes = (weights.config.num_quantizers, weights.config.samples_per_frame)
        self._shared = SharedStates(device, weights.config.state_size, self._contract, self._open_line)
        # Requests and the calls of a direct line use the runner in turn.
        self._lock = threading.Lock()
        # A stream of its own, so that synchronising waits for nothing else.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        with torch.cuda.stream(self._stream):
            self._runner = startup.make_runner(weights, device)
        # Loaded objects live as long as the model: keep the collector from scanning them under traffic.
        gc.collect()
        gc.freeze()
        # After everything that can fail the load, which Triton reports itself.
        self._guard = guard.start(args["model_name"])

    def finalize(self) -> None:
        if self._guard:
            self._guard.close()

    def execute(self, requests: list[Any]) -> list[Any]:
        # Sequentially: a caller with several streams sends them as one request.
        with self._lock, torch.cuda.stream(self._stream):
            responses = [self._respond(request, is_only=len(requests) == 1) for request in requests]
            if self._stream:
                # The caller may be another process, which cannot wait on this stream.
                self._stream.synchronize()
        return responses

    def _respond(self, request: Any, *, is_only: bool) -> Any:
        error = pb_utils.TritonError
        try:
            tensors = self._tensors(request)
            run = self._advance if self._contract.places in tensors else self._step
            outputs = run(request, tensors, is_only=is_only)
            # A request that names no outputs asks for those of both kinds.
            requested = [name for name in request.requested_output_names() if name in outputs]
            if not requested:
                raise InvalidInputError(f"only {', '.join(outputs)} can be computed from {', '.join(sorted(tensors))}")
        except InvalidInputError as problem:
            return pb_utils.InferenceResponse(error=error(f"INVALID_ARG: {problem}", error.INVALID_ARG))
        except Exception as problem:
            log.exception("a step failed")
            return pb_utils.InferenceResponse(error=error(str(problem), error.INTERNAL))
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(name, outputs[name]) for name in requested])

    # Triton copies the outputs before the next execute(): those of a lone request need not outlive it.

    def _step(self, request: Any, tensors: dict[str, torch.Tensor], *, is_only: bool) -> dict[str, torch.Tensor]:
        """The pure function: states are tensors of the request."""
        run = self._runner.lend if is_only else self._runner
        return dict(
            zip((self._contract.waveform, self._contract.state_out), run(*self._reader.read(tensors)), strict=True)
        )

    def _advance(self, request: Any, tensors: dict[str, torch.Tensor], *, is_only: bool) -> dict[str, torch.Tensor]:
        """The same on states that stay in the talker's memory."""
        names = self._contract
        address = json.loads(request.parameters() or "{}").get(names.states)
        if not isinstance(address, str):
            problem = f"missing; {names.places} are rows of the states that this parameter names"
            raise InvalidInputError(f"{names.states}: {problem}")
        pcm = self._runner.advance(*self._reader.read_shared(tensors, self._shared.find(address)))
        if not is_only:
            if self._stream:
                self._stream.synchronize()
            pcm = pcm.clone()
        return {names.pcm: pcm}

    def _open_line(self, place: dict[str, Any], states: torch.Tensor) -> Line:
        def run(codes: np.ndarray, places: np.ndarray, pcm: np.ndarray) -> None:
            with self._lock:
                samples = self._runner.advance(*self._reader.check_shared(SharedRequest(codes, states, places)))
                if self._stream:
                    self._stream.synchronize()
                pcm[:] = samples.numpy()

        def prepare(codes: np.ndarray, places: np.ndarray) -> None:
            with self._lock:
                self._runner.prepare(*self._reader.check_shared(SharedRequest(codes, states, places)))

        on_stream = torch.cuda.stream(self._stream)
        return Line(place, self._contract.states_memory, self._sizes, run, prepare, on_stream)

    def _tensors(self, request: Any) -> dict[str, torch.Tensor]:
        names = (self._contract.codes, self._contract.state, self._contract.history, self._contract.places)
        found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in names}
        return {name: torch.from_dlpack(tensor.to_dlpack()) for name, tensor in found.items() if tensor is not None}
