"""CUDA graphs accept text while they generate; text fed between two replays applies to the next one."""

import numpy as np
import pytest

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.talker.runner import TalkerRunner
from tests.fakes.dictation import speak_in_pieces, speak_whole
from tests.gpu.test_runner import FRAMES, forbid_device_sync, graphs, newcomer

__all__ = ["graphs"]
SLOTS = 3


def newcomers(checkpoint: Checkpoint) -> list[Newcomer]:
    """Prompts whose text is mostly fed later."""
    streams = []
    for slot in range(SLOTS):
        added = newcomer(checkpoint, slot, temperature=0.0)
        prompt = added.stream.prompt
        prompt.trailing[:] = [7 + slot, 8, 9, 10 + slot, 11]
        streams.append(added)
    return streams


@pytest.mark.parametrize("late", [False, True], ids=["in-time", "late"])
def test_text_fed_in_pieces_equals_the_whole_text(graphs: TalkerRunner, checkpoint: Checkpoint, late: bool) -> None:
    expected = speak_whole(graphs, newcomers(checkpoint), FRAMES)
    with forbid_device_sync():
        found = speak_in_pieces(graphs, newcomers(checkpoint), FRAMES, late=late)
    np.testing.assert_array_equal(found, expected)
