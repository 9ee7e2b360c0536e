"""Runs the step by ONNX Runtime, on a CPU."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from code2wav_step.config import StepConfig
from code2wav_step.pcm import to_int16
from code2wav_step.rows import HostRows, Places

# Since 1.29 ONNX Runtime reports events to Microsoft unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

MODEL_FILE = "model.onnx"
# The talker needs the other half of the cores. More threads would gain little: for a graph of so many bytes, and for a
# larger one.
LARGE, FEW_THREADS, MANY_THREADS = 64 << 20, 2, 4
# Rows times frames of one run of the graph. More take more memory and no less time for each, and every shape that runs
# must be verified.
MAX_FRAMES = 16
# Names of the file's tensors, in the order of the step's arguments and results (export/forms/onnx_form.py).
INPUTS, OUTPUTS = ("codes", "state", "history"), ("waveform", "state_out")


class OnnxStepRunner:
    def __init__(self, path: Path) -> None:
        """Raises ValueError naming the file."""
        if not path.is_file():
            raise ValueError(f"{path}: missing; `python -m export --form onnx` writes it from a checkpoint")
        options = onnxruntime.SessionOptions()
        most = MANY_THREADS if path.stat().st_size > LARGE else FEW_THREADS
        options.intra_op_num_threads = max(1, min(most, len(os.sched_getaffinity(0)) // 2))
        # Threads that spin would take the cores of the talker.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            self.config = StepConfig.from_metadata(self._session.get_modelmeta().custom_metadata_map)
        except Exception as error:  # of ONNX Runtime too
            raise ValueError(f"{path}: {error}") from None

    def context(self) -> AbstractContextManager[object]:
        return nullcontext()

    def new_rows(self) -> HostRows:
        return HostRows(self.config.state_size, self.config.contract)

    def decode(self, codes: np.ndarray, rows: HostRows, places: Places) -> np.ndarray:
        inputs = (codes, rows.gather(places), places.history[:, None])
        size = max(1, MAX_FRAMES // codes.shape[1])
        parts = (slice(start, start + size) for start in range(0, len(codes), size))
        outputs = [
            self._session.run(OUTPUTS, {name: value[part] for name, value in zip(INPUTS, inputs, strict=True)})
            for part in parts
        ]
        waveform, state_out = (np.concatenate(values) for values in zip(*outputs, strict=True))
        rows.scatter(places, state_out)
        return to_int16(waveform, self.config.contract)

    def prepare(self, codes: np.ndarray, rows: HostRows, places: Places) -> None:
        """There is nothing to prepare."""
