"""code2wav as an ONNX file, which ONNX Runtime serves and TensorRT builds its plan from."""

import logging
import warnings
from pathlib import Path

import onnxruntime  # type: ignore[import-untyped]
import torch
from torch.export import Dim

from export.codec import CodecStep
from export.form import Form
from export.verify import Agreement, Array, Step
from qwen3_tts_engine.code2wav import CODES, HISTORY, MAX_BATCH, MAX_FRAMES, STATE, STATE_OUT, WAVEFORM

OPSET = 18


def build(step: CodecStep, path: Path) -> None:
    """Write the step to `path`, for any batch and any chunk length."""
    # The exporter takes a dimension of 1 for a constant, so the example has more of each.
    example = (
        torch.zeros(2, 3, step.config.num_quantizers, dtype=torch.int32),
        torch.zeros(2, step.state_size, dtype=step.dtype),
        torch.zeros(2, 1, dtype=torch.int32),
    )
    rows, frames = Dim("batch", min=1, max=MAX_BATCH), Dim("frames", min=1, max=MAX_FRAMES)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # operators of absent packages
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            step,
            example,
            dynamo=True,
            opset_version=OPSET,
            input_names=[CODES, STATE, HISTORY],
            output_names=[WAVEFORM, STATE_OUT],
            dynamic_shapes={CODES: {0: rows, 1: frames}, STATE: {0: rows}, HISTORY: {0: rows}},
            external_data=False,
            verbose=False,
        )
    assert program is not None
    program.save(path)


def load(path: Path) -> Step:
    """The file on the CPU."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(codes: Array, state: Array, history: Array) -> tuple[Array, Array]:
        waveform, state_out = session.run([WAVEFORM, STATE_OUT], {CODES: codes, STATE: state, HISTORY: history})
        return waveform, state_out

    return run


ONNX = Form(
    name="onnx",
    filename="model.onnx",
    state_dtype="FP32",
    opset=OPSET,
    limit=Agreement(max_error=1e-3, snr_db=60.0),
    build=build,
    load=load,
)
