"""Calls of a code2wav that has the rows: through Triton, and past it once a direct line is open."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from qwen3_tts_engine.codec.contract import CODES, LINE, MODEL_NAME, PCM, PLACES
from qwen3_tts_engine.codec.line import Line
from qwen3_tts_engine.interfaces import CallModel, ModelCall

Watch = Callable[[str], AbstractContextManager[object]]
"""Wraps a call of the named model."""


class RowCalls:
    def __init__(self, call_model: CallModel, watch: Watch, line: Line | None) -> None:
        """`watch` is for calls by the line; `call_model` has its own."""
        self._call_model, self._watch, self._line = call_model, watch, line

    def call(self, codes: np.ndarray, places: np.ndarray) -> np.ndarray:
        """client.Call."""
        # The line calls without any operation of PyTorch: after a pause each takes the host up to 0.1 ms.
        if self._line and self._line.is_open():
            with self._watch(MODEL_NAME):
                return self._line.call(codes, places)
        inputs = {CODES: codes, PLACES: places}
        parameters = {LINE: self._line.address} if self._line else {}
        [pcm] = self._call_model(ModelCall(MODEL_NAME, inputs, [PCM], parameters=parameters))
        # TensorRT has no INT16: a plan's elements hold two samples each.
        samples: np.ndarray = pcm.view(np.int16)
        return samples

    def announce(self) -> None:
        if self._line and self._line.is_open():
            self._line.announce()
