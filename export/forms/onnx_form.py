"""code2wav as an ONNX graph, which Triton's Python backend runs by ONNX Runtime with the package code2wav_step."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from code2wav_step import onnx_runner
from code2wav_step.onnx_runner import INPUTS, OUTPUTS
from export.agreement import Agreement
from export.forms.codec_graph import codec_graph
from export.forms.form import Form
from export.forms.graph import ONNX_RUNTIME, Run
from export.forms.program_form import ONNX_PROGRAM
from export.forms.python_form import step_config
from export.modules.codec import CodecStep
from export.verify import StepFunction, Verification
from qwen3_tts_engine.talker.onnx_graph import OPSET


@dataclass(frozen=True)
class OnnxStep:
    """A loaded graph in FP32 as a step (verify.StepFunction)."""

    run: Run

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.run({name: tensor.cpu().numpy() for name, tensor in zip(INPUTS, inputs, strict=True)})
        waveform, state = (torch.from_numpy(outputs[name]) for name in OUTPUTS)
        return waveform, state


def verification(step: CodecStep, candidate: StepFunction) -> Verification:
    """Verifies every shape that the runner runs."""
    most = onnx_runner.MAX_FRAMES
    return Verification(step, candidate, range(1, most + 1), most_frames=most)


def build(step: CodecStep, path: Path) -> None:
    codec_graph(step).write(path, step_config(step.config).to_metadata())


def load(path: Path) -> OnnxStep:
    return OnnxStep(ONNX_RUNTIME.load(path))


ONNX = Form(
    name=ONNX_RUNTIME.name,
    filename=ONNX_RUNTIME.filename,
    opset=OPSET,
    state_dtype="FP32",
    limit=Agreement(max_error=1e-3, snr_db=60.0),
    build=build,
    load=load,
    encoders=ONNX_PROGRAM,
    verification=verification,
)
