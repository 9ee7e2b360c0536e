"""The real Triton model around a scripted talker; a test copies this over the real model.py, kept as real_model.py."""

import os
import sys

sys.path.insert(0, os.environ["PROJECT_ROOT"])

import torch
from real_model import TritonPythonModel as RealModel

from qwen3_tts_engine.checkpoint import Checkpoint
from qwen3_tts_engine.codec import CodecStates
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.scheduler import Newcomer
from tests.fakes.scripted import ScriptedRunner
from triton_io import BlsCodec

DEADLY_SEED = 666
STATE_SIZE = 16


class DeadlyRunner(ScriptedRunner):
    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        if any(newcomer.stream.sampling.seed == DEADLY_SEED for newcomer in newcomers):
            raise RuntimeError("injected")
        return super().prefill(newcomers)


class TritonPythonModel(RealModel):
    def make_runner(self, checkpoint: Checkpoint, config: EngineConfig, device: torch.device) -> DeadlyRunner:
        return DeadlyRunner(config.max_streams, float(os.environ.get("SCRIPTED_TICK_SECONDS", "0")))

    def make_codec(self, checkpoint: Checkpoint, config: EngineConfig, device: torch.device) -> BlsCodec:
        return BlsCodec(CodecStates(torch.zeros(config.max_streams + 1, STATE_SIZE, device=device), 71))
