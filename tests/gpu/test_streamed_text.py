"""CUDA graphs take text while they speak: what comes between two replays counts in the next one."""

import numpy as np
import pytest

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.core import Newcomer
from qwen3_tts_engine.talker.runner import TalkerRunner
from tests.fakes.dictation import speak_in_pieces, speak_whole
from tests.gpu.test_runner import FRAMES, graphs, newcomer, waiting_is_an_error

__all__ = ["graphs"]
SLOTS = 3


def newcomers(checkpoint: Checkpoint) -> list[Newcomer]:
    """Prompts that leave most of their text to be fed."""
    streams = []
    for slot in range(SLOTS):
        one = newcomer(checkpoint, slot, temperature=0.0)
        prompt = one.stream.prompt
        prompt.trailing[:] = [7 + slot, 8, 9, 10 + slot, 11]
        streams.append(one)
    return streams


@pytest.mark.parametrize("late", [False, True], ids=["in-time", "late"])
def test_text_in_pieces(graphs: TalkerRunner, checkpoint: Checkpoint, late: bool) -> None:
    expected = speak_whole(graphs, newcomers(checkpoint), FRAMES)
    with waiting_is_an_error():
        found = speak_in_pieces(graphs, newcomers(checkpoint), FRAMES, late=late)
    np.testing.assert_array_equal(found, expected)
