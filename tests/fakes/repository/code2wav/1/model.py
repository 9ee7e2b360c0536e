"""A scripted codec: the first samples of a frame are its first codes and the number of frames decoded before it."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from code2wav_step.config import Contract
from code2wav_step.line import Line

SAMPLES_PER_FRAME = 1920
# Third codes of frames that fail, and of frames that get no answer.
FAILING, SILENT = 1, 2
# Seconds; longer than call_timeout_seconds of the tests.
FOREVER = 30
ZERO_ROW = 0


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # The state of a row and its owner's key, the frames decoded so far: a row that is lost, swapped or stale shows
        # in the third sample.
        self.decoded: dict[tuple[int, int], int] = {}
        self.lock, self.lines = threading.Lock(), set[str]()
        sys.path.append(str(Path(args["model_repository"]).parent / "qwen3_tts" / "1"))
        from qwen3_tts_engine.codec.contract import terms

        self.contract = Contract(**terms())  # type: ignore[arg-type]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.respond(request) for request in requests]

    def respond(self, request: Any) -> Any:
        codes, places = (tensor.as_numpy() for tensor in self.inputs(request))
        pcm = np.empty((len(codes), codes.shape[1] * SAMPLES_PER_FRAME), np.int16)
        self.decode(codes, places, pcm)
        address = json.loads(request.parameters() or "{}").get(self.contract.line)
        if address and address not in self.lines:
            self.lines.add(address)
            Line(address, self.contract, (16, SAMPLES_PER_FRAME), self.decode, lambda *call: None, nullcontext())
        return pb_utils.InferenceResponse([pb_utils.Tensor("pcm", pcm)])

    def inputs(self, request: Any) -> Iterator[Any]:
        return (pb_utils.get_input_tensor_by_name(request, name) for name in ("codes", "places"))

    def decode(self, codes: np.ndarray, places: np.ndarray, pcm: np.ndarray) -> None:
        if SILENT in codes[:, 0, 2]:
            time.sleep(FOREVER)
        if FAILING in codes[:, 0, 2]:
            raise RuntimeError("injected")
        frames = codes.shape[1]
        samples = pcm.reshape(len(codes), frames, SAMPLES_PER_FRAME)
        samples[:, :, :2], samples[:, :, 3:] = codes[:, :, :2], 0
        with self.lock:
            samples[:, :, 2] = [self.advance(frames, *place) for place in places.tolist()]

    def advance(self, frames: int, before: int, after: int, history: int, key: int) -> range:
        """The third sample of each frame."""
        start = 0 if before == ZERO_ROW else self.decoded.get((before, key), 0)
        is_claim = before == after and history == 0
        if not is_claim:
            self.decoded[after, key] = start + frames
        return range(start, start + frames)
