"""The entry point of an engine's process with a scripted talker."""

import os
import sys

sys.path.insert(0, os.environ["PROJECT_ROOT"])

import numpy as np
import torch

from qwen3_tts_engine.arguments import OWNER
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.client import Code2Wav
from qwen3_tts_engine.codec.contract import RowCounts
from qwen3_tts_engine.codec.line import Line
from qwen3_tts_engine.codec.row_calls import RowCalls
from qwen3_tts_engine.codec.rows import owner_key
from qwen3_tts_engine.core.batches import Frames, Newcomer
from qwen3_tts_engine.process import child
from qwen3_tts_engine.service import Service
from tests.fakes.scripted import ScriptedRunner

FATAL_SEED = 666
# Third codes by seed of the stream; the scripted codec fails or blocks on them.
THIRD_CODES = {667: 1, 668: 2}
MAX_HISTORY = 71


class FailingRunner(ScriptedRunner):
    def __init__(self, num_slots: int, tick_seconds: float, page_size: int) -> None:
        super().__init__(num_slots, tick_seconds, page_size=page_size)
        self._third = np.zeros(num_slots, np.int64)

    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        if any(newcomer.stream.sampling.seed == FATAL_SEED for newcomer in newcomers):
            raise RuntimeError("injected")
        for newcomer in newcomers:
            self._third[newcomer.slot] = THIRD_CODES.get(newcomer.stream.sampling.seed, 0)
        return super().prefill(newcomers)

    def launch(self, slots: np.ndarray) -> Frames:
        frames = super().launch(slots)
        frames.codes[:, 2] = self._third[slots]
        return frames


class ScriptedService(Service):
    def make_runner(self, checkpoint: Checkpoint, device: torch.device) -> FailingRunner:
        tick_seconds = float(os.environ.get("SCRIPTED_TICK_SECONDS", "0"))
        return FailingRunner(self.config.max_streams, tick_seconds, self.config.page_size)

    def make_codec(self, checkpoint: Checkpoint, device: torch.device) -> Code2Wav:
        calls, counts = RowCalls(self.call_model, self._calls.call, Line()), RowCounts(self.config.max_streams, 0)
        key = owner_key(self._args[OWNER])
        return Code2Wav(calls.call, key, counts, MAX_HISTORY, self.config.max_chunk_frames)


if __name__ == "__main__":
    child.main(ScriptedService)
