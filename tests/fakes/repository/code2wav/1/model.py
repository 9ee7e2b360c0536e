"""A scripted codec: the first samples of a frame are its first codes and the number of frames decoded before it."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

SAMPLES_PER_FRAME = 1920
PCM_SCALE = 32767
# Third codes of frames that fail, and of frames that get no answer.
FAILING, SILENT = 1, 2
# Seconds; longer than call_timeout_seconds of the tests.
FOREVER = 30


class TritonPythonModel:
    def execute(self, requests):
        return [self.decode(*(t.as_numpy() for t in self.inputs(request))) for request in requests]

    def inputs(self, request):
        return (pb_utils.get_input_tensor_by_name(request, name) for name in ("codes", "state", "history"))

    def decode(self, codes, state, history):
        rows, frames, _ = codes.shape
        if SILENT in codes[:, 0, 2]:
            time.sleep(FOREVER)
        if FAILING in codes[:, 0, 2]:
            raise RuntimeError("injected")
        waveform = np.zeros((rows, frames, SAMPLES_PER_FRAME), np.float32)
        waveform[:, :, :2] = codes[:, :, :2] / PCM_SCALE
        # The state counts frames: a state that is lost, swapped or stale shows in the third sample.
        waveform[:, :, 2] = (state[:, :1] + np.arange(frames)) / PCM_SCALE
        state_out = state + frames
        outputs = {"waveform": waveform.reshape(rows, -1), "state_out": state_out}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])
