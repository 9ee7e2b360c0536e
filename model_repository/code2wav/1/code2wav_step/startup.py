"""Loads a model file and prepares its step to run."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from code2wav_step import weights as step_weights
from code2wav_step.buckets import BatchShape
from code2wav_step.config import StepConfig
from code2wav_step.ops import Ops
from code2wav_step.runner import EagerStepRunner, GraphStepRunner
from code2wav_step.step import Step
from code2wav_step.torch_ops import TorchOps
from code2wav_step.weights import StepWeights

log = logging.getLogger(__name__)
MODEL_FILE = "model.safetensors"
# The talker's setting of that name (qwen3_tts_engine/config.py).
KERNELS = "QWEN3_TTS_KERNELS"

TorchStepRunner = GraphStepRunner | EagerStepRunner


def load_weights(path: Path, device: torch.device) -> StepWeights:
    """The weights in FP16 on a GPU, widened to FP32 on a CPU. Raises ValueError naming the file."""
    if not path.is_file():
        raise ValueError(f"{path}: missing; `python -m export --form python` writes it from a checkpoint")
    return step_weights.load(path, device, torch.float16 if device.type == "cuda" else torch.float32)


def make_runner(weights: StepWeights, device: torch.device) -> TorchStepRunner:
    """Uses the fused kernels on a GPU, or PyTorch operations if kernels cannot be built and are not required."""
    if device.type == "cpu":
        return EagerStepRunner(Step(weights, TorchOps(weights.config, device)))
    try:
        return capture(weights, _kernel_ops(weights.config, device), device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if os.environ.get(KERNELS) == "required":
            raise
        log.warning("the kernels could not be built; using PyTorch operations, slower: %s", error)
        return capture(weights, TorchOps(weights.config, device), device)


def capture(
    weights: StepWeights, ops: Ops, device: torch.device, shapes: Sequence[BatchShape] | None = None
) -> GraphStepRunner:
    runner = GraphStepRunner(Step(weights, ops), device)
    log.info("building kernels")
    runner.capture(shapes, lambda done, total: log.info("captured %d of %d CUDA graphs", done, total))
    return runner


def _kernel_ops(config: StepConfig, device: torch.device) -> Ops:
    # Imported here: Triton is not installed everywhere.
    from code2wav_step.kernel_ops import KernelOps

    return KernelOps(config, device)
