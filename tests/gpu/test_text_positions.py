"""The demo voice's graphs on a GPU follow its text."""

import numpy as np
import pytest

from qwen3_tts_engine.checkpoint.alignment import TextLayout
from qwen3_tts_engine.core.batches import MILLION
from qwen3_tts_engine.core.words import MIN_CONFIDENCE
from tests.gpu.conftest import DEVICE
from tests.unit.talker.test_text_positions import Speaking


@pytest.fixture(scope="module")
def graphs() -> Speaking:
    return Speaking("required", device=DEVICE)


@pytest.mark.parametrize("layout", ["full", "streaming"])
def test_a_position_passes_from_the_first_token_to_the_end(graphs: Speaking, layout: TextLayout) -> None:
    newcomer = graphs.newcomer(0, layout)
    graphs.begin(newcomer)
    spoken = graphs.spoken([0])
    assert (np.diff(spoken[:, 0]) >= 0).all()
    assert spoken[-1, 0] >= newcomer.stream.prompt.num_spoken - 1
    assert spoken[1:, 1].mean() / MILLION > MIN_CONFIDENCE + 0.15


def test_a_batch_without_word_times_tracks_nothing(graphs: Speaking) -> None:
    graphs.begin(graphs.newcomer(0, word_times=False), graphs.newcomer(1, word_times=False))
    assert [spoken for _, spoken in graphs.frames([0, 1])][:3] == [None] * 3


def test_rows_of_a_mixed_batch_have_the_positions_that_they_have_alone(graphs: Speaking) -> None:
    """Other codes may be drawn beside other streams, so the share of the text is compared by time."""
    layouts: list[TextLayout] = ["full", "streaming"]
    graphs.begin(graphs.newcomer(0, "full"), graphs.newcomer(1, word_times=False), graphs.newcomer(2, "streaming"))
    spoken = np.array([spoken for _, spoken in graphs.frames([0, 1, 2]) if spoken is not None])
    for row, layout in zip((0, 2), layouts, strict=True):
        graphs.begin(graphs.newcomer(3, layout))
        alone = graphs.spoken([3])
        count = min(len(alone), len(spoken))
        assert np.abs(alone[:count, 0] - spoken[:count, row, 0]).mean() < 2
