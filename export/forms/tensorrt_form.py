"""code2wav as a TensorRT plan, whose one layer, the plugin, runs the project's fused kernels."""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from code2wav_step.weights import assemble
from export.agreement import Agreement
from export.forms.form import Form
from export.forms.python_form import folded, step_config
from export.forms.tensorrt_plan import UNVERIFIED, build_from, tensorrt
from export.modules.codec import CodecStep
from export.profiles import Profile, profile
from export.tensorrt.api import PLUGIN_LIBRARY
from export.tensorrt.process import PlanError, PlanProcess, TensorRtSettings
from export.tensorrt.step import PROGRAM_SUFFIX
from export.verify import ALL_BATCHES
from export.verify_calls import CallVerification
from qwen3_tts_engine.checkpoint.manifest import PLAN, EngineFacts
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, CODES, MAX_BATCH, PCM, PLACES, call_shapes

# Batch and chunk length that an engine is tuned for; the plugin has nothing to tune.
COMMON = (32, 4)
# (batch, frames) timed for the summary.
TIMED = ((1, 1), (1, 4), (8, 4), (64, 4))
REPEATS = 20
REMEDY = "Build with another TensorRT, or export --form python."


@dataclass(frozen=True)
class PlanCalls:
    """Calls of a loaded plan (codec.client.Call). Raises PlanError."""

    process: PlanProcess

    def __call__(self, codes: np.ndarray, places: np.ndarray) -> np.ndarray:
        outputs = self.process({CODES: codes, PLACES: places})
        samples: np.ndarray = outputs[PCM].view(np.int16)
        return samples


def tensorrt_form(settings: TensorRtSettings) -> Form:
    return Form(
        name="tensorrt",
        filename=PLAN,
        state_dtype="FP16",
        opset=None,
        limit=Agreement(max_error=0.1, snr_db=30.0),
        build=partial(build, settings),
        load=partial(load, settings),
        encoders=tensorrt(settings),
        verification=CallVerification,
        remedy=REMEDY,
        timings=timings,
    )


def build(settings: TensorRtSettings, step: CodecStep, path: Path) -> EngineFacts:
    """Builds from a step in FP32. Raises PlanError."""
    if settings.plugin is None:
        raise PlanError(f"no plugin: set {PLUGIN_LIBRARY} to the library of export/plugin/build.sh, or --form python")
    # Imported here: Triton, which compiles the kernels, is installed only where it is needed.
    from code2wav_step.kernel_ops import KernelError
    from export.tensorrt.step_program import write_program

    weights = assemble(step_config(step.config), folded(step), torch.float16)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / f"step{PROGRAM_SUFFIX}"
        try:
            write_program(weights, shapes(), program)
        except KernelError as error:
            raise PlanError(f"the plugin does not support this codec: {error}: export --form python") from None
        return build_from(settings, program, [plan_profile()], path)


def shapes() -> list[tuple[int, int]]:
    """(rows, frames) of every call; Triton may batch the talker's with those of others."""
    return [(rows, frames) for frames in CHUNK_FRAMES for rows in ALL_BATCHES]


def plan_profile() -> Profile:
    """One for all shapes, so that the plan has the program once; the plugin rejects shapes that were not recorded."""
    return profile(*(call_shapes(*shape) for shape in ((1, 1), COMMON, (MAX_BATCH, CHUNK_FRAMES[-1]))))


def load(settings: TensorRtSettings, path: Path) -> PlanCalls:
    """Raises PlanError."""
    return PlanCalls(PlanProcess(settings, path, UNVERIFIED))


def timings(calls: PlanCalls) -> list[str]:
    """A line for each shape of TIMED: GPU time of the loaded plan."""
    lines = []
    for rows, frames in TIMED:
        microseconds = calls.process.microseconds(call_shapes(rows, frames), REPEATS)
        each = microseconds / rows / frames
        lines.append(f"batch {rows} x {frames} frames: {microseconds / 1000:.2f} ms, {each:.0f} us per frame")
    return lines
