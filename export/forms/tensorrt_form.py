"""code2wav as a TensorRT plan."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from code2wav_step.weights import assemble
from export.agreement import Agreement
from export.forms.form import Form
from export.forms.onnx_form import graph_form, plan_profiles
from export.forms.python_form import folded, step_config
from export.forms.tensorrt_plan import UNVERIFIED, build_from, tensorrt
from export.modules.codec import CodecStep
from export.profiles import Shapes
from export.tensorrt.api import PLUGIN_LIBRARY
from export.tensorrt.process import PlanError, TensorRtSettings
from export.tensorrt.shared_plan import SharedPlan
from export.tensorrt.step import PROGRAM_SUFFIX
from export.verify import ALL_BATCHES, LONG_UTTERANCE
from qwen3_tts_engine.checkpoint.manifest import EngineFacts
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, CODES, HISTORY, STATE, STATE_OUT, WAVEFORM, input_shapes

# (batch, frames) timed for the summary.
TIMED = ((1, 1), (1, 4), (8, 4), (64, 4))
REPEATS = 20
REMEDY = "Build with another --tensorrt-level or another TensorRT, or export --form python."


@dataclass(frozen=True)
class PlanStep:
    """A loaded plan as a step (verify.Step), with FP32 states."""

    plan: SharedPlan

    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.plan({CODES: codes, STATE: state, HISTORY: history})
        return outputs[WAVEFORM], outputs[STATE_OUT].float()

    @property
    def microseconds(self) -> Callable[[Shapes, int], float]:
        return self.plan.process.microseconds


def tensorrt_form(settings: TensorRtSettings) -> Form:
    """With a plugin the step runs the project's fused kernels, otherwise TensorRT's own."""
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
    form = replace(form, load=partial(load, settings))
    if settings.plugin is None:
        return form
    build = partial(build_with_plugin, settings)
    return replace(form, build=build, weights_dtype=torch.float32, plugin=True, opset=None)


def build_with_plugin(settings: TensorRtSettings, step: CodecStep, path: Path) -> EngineFacts:
    """Builds from a step in FP32. Raises PlanError."""
    # Imported here: Triton, which compiles the kernels, is installed only where it is needed.
    from code2wav_step.kernel_ops import KernelError
    from export.tensorrt.step_program import write_program

    weights = assemble(step_config(step.config), folded(step), torch.float16)
    shapes = [(rows, frames) for frames in CHUNK_FRAMES for rows in ALL_BATCHES]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / f"step{PROGRAM_SUFFIX}"
        try:
            write_program(weights, shapes, program)
        except KernelError as error:
            raise PlanError(f"the plugin does not support this codec: {error}; unset {PLUGIN_LIBRARY}") from None
        return build_from(settings, program, plan_profiles(step.state_size), path)


def load(settings: TensorRtSettings, path: Path) -> PlanStep:
    """Raises PlanError."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return PlanStep(SharedPlan(settings, path, device, UNVERIFIED))


def timings(step: Any, state_size: int) -> list[str]:
    """A line for each shape of TIMED: GPU time of the loaded plan."""
    lines = []
    for rows, frames in TIMED:
        microseconds = step.microseconds(input_shapes(rows, frames, state_size), REPEATS)
        each = microseconds / rows / frames
        lines.append(f"batch {rows} x {frames} frames: {microseconds / 1000:.2f} ms, {each:.0f} us per frame")
    return lines
