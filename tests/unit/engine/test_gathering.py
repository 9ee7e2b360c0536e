"""The talker begins a burst with all of it, a lone stream at once, and a newcomer without delaying others."""

import threading

import numpy as np
import pytest

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.core.batches import Frames
from qwen3_tts_engine.scheduling import newcomers
from tests.unit.engine.test_engine import WAIT, Harness, eventually

BURST = 4


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> tuple[Harness, list[int], threading.Event]:
    """An engine, the streams of each launch, and whether there was one."""
    harness, counts, began = Harness(lookahead=1), list[int](), threading.Event()
    launch = harness.runner.launch

    def noting(slots: np.ndarray) -> Frames:
        counts.append(len(slots))
        began.set()
        return launch(slots)

    monkeypatch.setattr(harness.runner, "launch", noting)
    return harness, counts, began


def test_those_of_a_burst_begin_together(
    launched: tuple[Harness, list[int], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newcomers, "MAX_INTERVAL", 2.0)
    harness, counts, _ = launched
    scheduler = harness.engine.scheduler
    scheduler.newcomers.more_follow = lambda: len(scheduler.live) < BURST
    harness.engine.start()
    listeners = [harness.speak(seed) for seed in range(BURST)]
    assert all(listener.ended.wait(WAIT) for listener in listeners)
    harness.engine.close()
    assert counts[0] == BURST


def test_a_lone_stream_waits_no_longer_than_an_interval(
    launched: tuple[Harness, list[int], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has arrived may be no request, or one that is refused."""
    monkeypatch.setattr(newcomers, "MAX_INTERVAL", 2.0)
    harness, counts, began = launched
    harness.engine.scheduler.newcomers.more_follow = lambda: True
    harness.engine.start()
    listener = harness.speak()
    assert not began.wait(0.1)
    assert listener.ended.wait(WAIT)
    assert counts[0] == 1
    harness.engine.close()


def test_newcomers_share_the_ticks_of_a_listener_without_spare_audio(
    launched: tuple[Harness, list[int], threading.Event],
) -> None:
    """By the second one it is known how long a first frame alone takes."""
    harness, counts, _ = launched
    harness.runner.tick_seconds = FRAME_SECONDS
    harness.engine.start()
    listener = harness.speak(frames=200)
    eventually(lambda: len(listener.pcm) > 2)
    for _ in range(2):
        assert harness.speak(frames=2).ended.wait(WAIT)
    harness.engine.close()
    assert counts.count(2) == 4
