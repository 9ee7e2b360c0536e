"""code2wav as a TensorRT plan."""

from typing import Any

import torch

from export.form import Form
from export.onnx_form import COMMON_FRAMES, graph_form
from export.plan_process import TensorRtSettings
from export.tensorrt_plan import tensorrt
from export.verify import CASES, LONG_UTTERANCE, Agreement
from qwen3_tts_engine.code2wav import MAX_BATCH, MAX_FRAMES, input_shapes

# (batch, frames) of the summary.
TIMED = ((1, 1), (1, 4), (8, 4), (64, 4))
REPEATS = 20


def tensorrt_form(settings: TensorRtSettings) -> Form:
    runtime = tensorrt(settings)
    return graph_form(
        runtime,
        encoders=runtime,
        state_dtype="FP16",
        limit=Agreement(max_error=0.1, snr_db=30.0),
        weights_dtype=torch.float16,
        cases=(*CASES, (MAX_BATCH, COMMON_FRAMES), (MAX_BATCH, MAX_FRAMES)),
        utterance=LONG_UTTERANCE,
        timings=timings,
    )


def timings(step: Any, state_size: int) -> list[str]:
    """A line for each shape of TIMED: what the loaded plan takes of the GPU."""
    lines = []
    for rows, frames in TIMED:
        microseconds = step.run.microseconds(input_shapes(rows, frames, state_size), REPEATS)
        each = microseconds / rows / frames
        lines.append(f"batch {rows} x {frames} frames: {microseconds / 1000:.2f} ms, {each:.0f} us per frame")
    return lines
