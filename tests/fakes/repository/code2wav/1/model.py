"""A scripted codec: the first samples of a frame are its first codes and the number of frames decoded before it."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

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

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.decode(*(t.as_numpy() for t in self.inputs(request))) for request in requests]

    def inputs(self, request: Any) -> Iterator[Any]:
        return (pb_utils.get_input_tensor_by_name(request, name) for name in ("codes", "places"))

    def decode(self, codes: np.ndarray, places: np.ndarray) -> Any:
        rows, frames, _ = codes.shape
        if SILENT in codes[:, 0, 2]:
            time.sleep(FOREVER)
        if FAILING in codes[:, 0, 2]:
            raise RuntimeError("injected")
        pcm = np.zeros((rows, frames, SAMPLES_PER_FRAME), np.int16)
        pcm[:, :, :2] = codes[:, :, :2]
        pcm[:, :, 2] = [self.advance(frames, *place) for place in places.tolist()]
        return pb_utils.InferenceResponse([pb_utils.Tensor("pcm", pcm.reshape(rows, -1))])

    def advance(self, frames: int, before: int, after: int, history: int, key: int) -> range:
        """The third sample of each frame."""
        start = 0 if before == ZERO_ROW else self.decoded.get((before, key), 0)
        is_claim = before == after and history == 0
        if not is_claim:
            self.decoded[after, key] = start + frames
        return range(start, start + frames)
