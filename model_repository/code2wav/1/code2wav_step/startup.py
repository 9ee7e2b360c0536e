"""From a model file to a step that is ready to run."""

import logging
from pathlib import Path

import torch

from code2wav_step import weights as step_weights
from code2wav_step.ops import Ops
from code2wav_step.runner import GraphRunner, PlainRunner
from code2wav_step.step import Step
from code2wav_step.torch_ops import TorchOps
from code2wav_step.weights import StepWeights

log = logging.getLogger(__name__)
MODEL_FILE = "model.safetensors"


def load_step(path: Path, device: torch.device, *, kernels: bool = True) -> Step:
    """FP16 on a GPU, FP32 arithmetic on the same weights on a CPU. Raises ValueError naming the file."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    if not path.is_file():
        raise ValueError(f"{path}: missing; `python -m export --form python` makes it from a checkpoint")
    weights = step_weights.load(path, device, dtype)
    return Step(weights, _ops(weights, device, kernels))


def make_runner(step: Step, device: torch.device) -> GraphRunner | PlainRunner:
    if device.type == "cpu":
        return PlainRunner(step)
    runner = GraphRunner(step, device)
    runner.capture(lambda done, total: log.info("captured %d of %d CUDA graphs", done, total))
    return runner


def _ops(weights: StepWeights, device: torch.device, kernels: bool) -> Ops:
    return TorchOps(weights.config, device)
