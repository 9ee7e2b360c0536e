"""The next tick is launched within the one that runs: late, but early enough for the host."""

import time

import numpy as np
import pytest

from qwen3_tts_engine.core.batches import Batch
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.pacing import LAUNCH_SHARE, LAUNCHES, Pacing
from tests.unit.engine.test_engine import WAIT, Harness

TICK, STREAMS = 0.010, 8


def batch(prefill_rows: int = 0) -> Batch:
    slots = np.arange(STREAMS)
    return Batch([], [], np.empty((0, 3), np.int64), slots, slots, prefill_rows)


def pacing() -> Pacing:
    capacity = Capacity(0, 16, batching_is_free=True)
    for _ in range(100):
        capacity.add_tick(STREAMS, TICK)
    return Pacing(capacity)


def test_waits_for_a_share_of_the_tick_that_runs() -> None:
    paced = pacing()
    assert paced.seconds_to_launch(batch(), 5.0, 5.001) == pytest.approx(LAUNCH_SHARE * TICK - 0.001)
    assert paced.end_tick(batch(), 5.0, 5.012) == pytest.approx(0.012)
    # Launched at 5.006, behind the one that ended at 5.012.
    assert paced.seconds_to_launch(batch(), 5.006, 5.012) == pytest.approx(LAUNCH_SHARE * TICK)
    assert paced.end_tick(batch(), 5.006, 5.022) == pytest.approx(TICK)
    assert paced.seconds_to_launch(batch(), 5.0, 6.0) == 0


@pytest.mark.parametrize("batching_is_free", [True, False])
def test_the_first_tick_has_no_estimate(batching_is_free: bool) -> None:
    paced = Pacing(Capacity(0, 16, batching_is_free=batching_is_free))
    assert paced.seconds_to_launch(batch(), 5.0, 5.0) == 0
    assert paced.end_tick(batch(), 5.0, 5.01) == pytest.approx(0.01)


def test_a_slow_host_launches_earlier() -> None:
    paced = pacing()
    for _ in range(200):
        paced.add_launch(0.002)
    assert paced.seconds_to_launch(batch(), 5.0, 5.0) == pytest.approx(TICK - LAUNCHES * 0.002)
    for _ in range(200):
        paced.add_launch(0.005)
    assert paced.seconds_to_launch(batch(), 5.0, 5.0) == 0


def test_an_estimate_too_long_does_not_confirm_itself() -> None:
    """Launches that come after the end of the tick that runs make it seem longer."""
    capacity = Capacity(0, 16, batching_is_free=True)
    for _ in range(100):
        capacity.add_tick(STREAMS, 10 * TICK)
    paced = Pacing(capacity)
    launched = now = 5.0
    for _ in range(6):
        begun = now
        # The next one is launched; then this one's end is noticed.
        next_launch = now + paced.seconds_to_launch(batch(), launched, now)
        now = max(begun + TICK, next_launch)
        paced.end_tick(batch(), launched, now)
        launched = next_launch
    assert now - begun == pytest.approx(TICK)


def test_a_prefill_is_part_of_the_tick() -> None:
    capacity = Capacity(0, 16, batching_is_free=True)
    for _ in range(100):
        capacity.add_tick(STREAMS, TICK)
    for rows in (100, 200) * 50:
        capacity.add_tick(STREAMS, TICK + rows * 1e-4, rows)
    wait = Pacing(capacity).seconds_to_launch(batch(200), 5.0, 5.0)
    assert wait == pytest.approx(LAUNCH_SHARE * (TICK + 0.020), rel=0.05)


@pytest.mark.parametrize("took", [0.5, 2.0])
def test_an_estimate_that_was_too_long_is_shortened(took: float) -> None:
    paced = pacing()
    paced.end_tick(batch(), 5.0, 5.0 + took * TICK)
    wait = paced.seconds_to_launch(batch(), 5.0, 5.0 + took * TICK)
    assert wait == pytest.approx(LAUNCH_SHARE * TICK * min(took, 1.0))


def test_does_not_wait_before_the_first_measurement() -> None:
    assert Pacing(Capacity(0, 16, batching_is_free=False)).seconds_to_launch(batch(), 5.0, 5.0) == 0


@pytest.mark.timing
def test_the_engine_launches_within_the_tick_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device runs ticks one after the other; a busy machine makes launches later, not earlier."""
    harness = Harness(lookahead=1)
    begun: list[float] = []
    waited: list[float] = []
    launch, end = harness.runner.launch, [0.0]

    def launched(slots: object) -> object:
        now = time.perf_counter()
        waited.extend([now - begun[-1]] if begun else [])
        begun.append(max(now, end[0]))
        end[0] = begun[-1] + TICK
        return launch(slots)  # type: ignore[arg-type]

    def collected(tick: object) -> object:
        # The one that runs ends before the one behind it.
        time.sleep(max(begun[harness.runner.collected] + TICK - time.perf_counter(), 0))
        harness.runner.collected += 1
        return tick

    monkeypatch.setattr(harness.runner, "launch", launched)
    monkeypatch.setattr(harness.runner, "collect", collected)
    harness.engine.start()
    listener = harness.speak(frames=60)
    assert listener.ended.wait(WAIT)
    harness.engine.close()
    # Once ticks have been measured.
    measured = sorted(waited[20:])
    assert measured[len(measured) // 4] > 0.8 * LAUNCH_SHARE * TICK
