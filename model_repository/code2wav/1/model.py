"""Triton's entry point to the codec step: adapts tensors and errors only."""

import gc
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from code2wav_step import executors, guard, instance
from code2wav_step.line import Line
from code2wav_step.pcm import mark_denied
from code2wav_step.requests import InvalidInputError, Request, RequestReader

log = logging.getLogger("code2wav_step")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Loads the exported file and captures graphs of it; an error fails the load with a message that names it."""
        # Before the first CUDA call, which reads it: under MPS the codec (0, normal) goes before the talker (1).
        os.environ.setdefault("CUDA_MPS_CLIENT_PRIORITY", "0")
        instance.log_through_triton(log, args["model_name"])
        executor = json.loads(args["model_config"])["parameters"]["executor"]["string_value"]
        folder = Path(args["model_repository"]) / args["model_version"]
        self._runner = executors.load_runner(folder, executor, args)
        with self._runner.context():
            self._rows = self._runner.new_rows()
        config = self._runner.config
        self._config, self._contract, self._reader = config, config.contract, RequestReader(config)
        # Requests and the calls of a direct line use the runner in turn.
        self._lock = threading.Lock()
        self._lines: set[str] = set()
        # Loaded objects live as long as the model: keep the collector from scanning them under traffic.
        gc.collect()
        gc.freeze()
        # Started after everything that can fail the load, which Triton reports itself.
        self._guard = guard.start(args["model_name"])

    def finalize(self) -> None:
        if self._guard:
            self._guard.close()

    def execute(self, requests: list[Any]) -> list[Any]:
        # Sequentially: a caller with several streams sends them as one request.
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        error = pb_utils.TritonError
        try:
            names = (self._contract.codes, self._contract.places)
            tensors = {name: pb_utils.get_input_tensor_by_name(request, name) for name in names}
            given = {name: tensor.as_numpy() for name, tensor in tensors.items() if tensor is not None}
            codes, places = self._reader.read(given)
            pcm = np.empty((len(codes), codes.shape[1] * self._config.samples_per_frame), np.int16)
            self._advance(codes, places, pcm)
            self._open_line(request)
        except InvalidInputError as problem:
            return pb_utils.InferenceResponse(error=error(f"INVALID_ARG: {problem}", error.INVALID_ARG))
        except Exception as problem:
            log.exception("a step failed")
            return pb_utils.InferenceResponse(error=error(str(problem), error.INTERNAL))
        return pb_utils.InferenceResponse([pb_utils.Tensor(self._contract.pcm, pcm)])

    def _advance(self, codes: np.ndarray, places: np.ndarray, pcm: np.ndarray) -> None:
        """Fills `pcm`, int16 [rows, samples]."""
        with self._lock, self._runner.context():
            opened = self._rows.open(places)
            if opened.writes:
                pcm[:] = self._runner.decode(codes, self._rows, opened)
            else:
                # A talker claims hundreds of rows at start; decoding a frame for each takes a CPU seconds.
                pcm.fill(0)
        mark_denied(pcm, opened.denied, self._contract)

    def _open_line(self, request: Any) -> None:
        """Takes the other end of a talker's direct line, if the request names one."""
        address = json.loads(request.parameters() or "{}").get(self._contract.line)
        if address is None or address in self._lines:
            return

        def run(codes: np.ndarray, places: np.ndarray, pcm: np.ndarray) -> None:
            self._advance(*self._reader.check(Request(codes, places)), pcm)

        def prepare(codes: np.ndarray, places: np.ndarray) -> None:
            with self._lock:
                self._runner.prepare(codes, self._rows, self._rows.open(places))

        sizes = (self._config.num_quantizers, self._config.samples_per_frame)
        Line(address, self._contract, sizes, run, prepare, self._runner.context())
        self._lines.add(address)
