"""Words that are left out or said twice, as the text tracker follows them and as they are counted."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qwen3_tts_engine import metrics
from qwen3_tts_engine.checkpoint.alignment import Alignment, AlignmentHeads
from qwen3_tts_engine.core.batches import MILLION
from qwen3_tts_engine.core.streams import NONE
from qwen3_tts_engine.core.text_jumps import TextJumps
from qwen3_tts_engine.core.words import WordTimes
from qwen3_tts_engine.talker.kv_cache import PagedCache
from qwen3_tts_engine.talker.ops.torch_tracking import TorchTracking
from qwen3_tts_engine.talker.text_tracker import TextTracker
from tests.unit.engine.test_delivery import Line
from tests.unit.talker.attention_case import transformer_config

TOKENS, SIZE = 40, 64
HEADS = AlignmentHeads(heads=[(0, 0)], advance=[0.5, 0.35, 0.11, 0.04], scores={"english": 1.0})


def followed(attended: Sequence[int]) -> list[tuple[int, float]]:
    """Position and confidence of frames that attend to these tokens, the last of which is the text's end."""
    tracker = TextTracker(Alignment(talker_digest="", layouts={"full": HEADS}), 1, TOKENS, torch.device("cpu"))
    cache = PagedCache(transformer_config(1, 1, SIZE), 1, TOKENS, torch.zeros(1, 1, dtype=torch.int64), torch.float32)
    cache.data[0, 0, :TOKENS, 0] = torch.eye(TOKENS, SIZE)
    # One slot, whose text is in the layout `full` from position 0 on.
    state: Any = SimpleNamespace(text=torch.tensor([[1, 0, TOKENS]]), spoken=torch.tensor([[0, NONE]]))
    found = []
    for token in attended:
        tracking = TorchTracking(tracker, state, cache, torch.tensor([0]), torch.tensor([TOKENS]))
        tracking.observe_head(0, 50 * torch.eye(TOKENS, SIZE)[token : token + 1])
        tracking.finish()
        [[position, millionths]] = state.spoken.tolist()
        found.append((position, millionths / MILLION))
    return found


def spoken(*ranges: tuple[int, int]) -> list[int]:
    """Tokens of these ranges, of two frames each."""
    return [token for first, end in ranges for token in range(first, end) for _ in range(2)]


def jumps(attended: Sequence[int]) -> tuple[int, int]:
    found = TextJumps()
    found.observe(0, None)
    for position, confidence in followed(attended):
        found.observe(position, confidence)
    return found.ahead, found.back


@pytest.mark.parametrize(
    ("attended", "counted"),
    [
        pytest.param(spoken((0, 40)), (0, 0), id="every word once"),
        pytest.param([*spoken((0, 20)), *[20] * 30, *spoken((20, 40))], (0, 0), id="a pause"),
        pytest.param([*range(40)], (0, 0), id="a token with each frame"),
        pytest.param(spoken((0, 12), (19, 40)), (1, 0), id="words left out"),
        pytest.param(spoken((0, 12), (32, 40)), (1, 0), id="half of the text left out"),
        pytest.param(spoken((0, 8), (15, 24), (31, 40)), (2, 0), id="words left out twice"),
        pytest.param(spoken((0, 20), (12, 40)), (0, 1), id="words said twice"),
        pytest.param(spoken((0, 14), (6, 28), (20, 40)), (0, 2), id="words said twice, twice"),
        pytest.param(spoken((0, 20), (0, 4)), (0, 0), id="speech that does not come back"),
    ],
)
def test_jumps_are_counted_where_speech_is_in_order_again(attended: list[int], counted: tuple[int, int]) -> None:
    assert jumps(attended) == counted


@pytest.mark.parametrize("is_next_part", [False, True])
@pytest.mark.parametrize(("lost_frames", "back"), [(3, 0), (4, 1)])
def test_lost_frames_are_counted_from_the_first_of_a_part(lost_frames: int, back: int, is_next_part: bool) -> None:
    found = TextJumps()
    if is_next_part:
        found.observe(0, 0.1)
        found.begin_part()
    for confidence in [0.1] * lost_frames + [0.9]:
        found.observe(0, confidence)
    assert found.back == back


def test_the_next_part_is_no_jump() -> None:
    times = WordTimes()
    for part in range(2):
        times.add(60 * part, "a " * 30, [(2 * token, 2 * token + 1) for token in range(30)], ends=True)
    for frame in range(40):
        part, token = divmod(frame, 20)
        times.observe(frame, part, 8 * part + token, 0.1 if 17 <= frame < 20 else 0.9)
    assert (times.jumps.ahead, times.jumps.back) == (0, 0)


def test_jumps_of_an_utterance_are_counted_by_direction() -> None:
    line = Line()
    stream, plain = line.stream("a"), line.stream("b")
    stream.words = WordTimes()
    stream.words.jumps.ahead, stream.words.jumps.back = 2, 1
    line.decode([stream, plain], 1, ended=[stream, plain])
    line.run()
    counted = line.recorder.take().counted
    assert [counted[metrics.JUMPS.name, direction] for direction in ("ahead", "back")] == [2, 1]
