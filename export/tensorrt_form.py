"""code2wav as a TensorRT plan."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from export.agreement import Agreement
from export.form import Form
from export.onnx_form import graph_form
from export.plan_process import TensorRtSettings
from export.profiles import Shapes
from export.shared_plan import SharedPlan
from export.tensorrt_plan import UNVERIFIED, tensorrt
from export.verify import ALL_BATCHES, LONG_UTTERANCE
from qwen3_tts_engine.code2wav import CODES, HISTORY, STATE, STATE_OUT, WAVEFORM, input_shapes

# (batch, frames) of the summary.
TIMED = ((1, 1), (1, 4), (8, 4), (64, 4))
REPEATS = 20
REMEDY = "Build with another --tensorrt-level or another TensorRT, or export --form python."


@dataclass(frozen=True)
class PlanStep:
    """A loaded plan as a step (verify.Step), with FP32 states whatever its own."""

    plan: SharedPlan

    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.plan({CODES: codes, STATE: state, HISTORY: history})
        return outputs[WAVEFORM], outputs[STATE_OUT].float()

    @property
    def microseconds(self) -> Callable[[Shapes, int], float]:
        return self.plan.process.microseconds


def tensorrt_form(settings: TensorRtSettings) -> Form:
    runtime = tensorrt(settings)
    form = graph_form(
        runtime,
        encoders=runtime,
        state_dtype="FP16",
        limit=Agreement(max_error=0.1, snr_db=30.0),
        weights_dtype=torch.float16,
        batches=ALL_BATCHES,
        utterance=LONG_UTTERANCE,
        remedy=REMEDY,
        timings=timings,
    )
    return replace(form, load=partial(load, settings))


def load(settings: TensorRtSettings, path: Path) -> PlanStep:
    """Raises PlanError."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return PlanStep(SharedPlan(settings, path, device, UNVERIFIED))


def timings(step: Any, state_size: int) -> list[str]:
    """A line for each shape of TIMED: what the loaded plan takes of the GPU."""
    lines = []
    for rows, frames in TIMED:
        microseconds = step.microseconds(input_shapes(rows, frames, state_size), REPEATS)
        each = microseconds / rows / frames
        lines.append(f"batch {rows} x {frames} frames: {microseconds / 1000:.2f} ms, {each:.0f} us per frame")
    return lines
