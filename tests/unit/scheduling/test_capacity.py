"""Admission keeps all streams real-time, as predicted from measured ticks and codec calls."""

import math
import time
from collections.abc import Callable, Collection
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_engine.audio import FRAME_SECONDS, SAMPLES_PER_FRAME
from qwen3_tts_engine.request import Unavailable
from qwen3_tts_engine.scheduling.capacity import Capacity, CostBySize, LineFit, WorkTime
from tests.fakes.scripted import Listener, make_stream
from tests.unit.engine.test_engine import WAIT, Harness, eventually

ROW_SECONDS = 0.004
LOAD_LIMIT = 0.3
FITTING = int(LOAD_LIMIT * FRAME_SECONDS / ROW_SECONDS)


@given(st.floats(0.001, 0.1), st.floats(0, 0.01))
def test_fits_a_line_and_follows_its_changes(fixed: float, each: float) -> None:
    fit = WorkTime(batching_is_free=False)
    for factor in (1.0, 2.0, 0.5):
        for i in range(400):
            fit.add(1 + i % 32, factor * (fixed + each * (1 + i % 32)))
        assert fit.at(64) == pytest.approx(factor * (fixed + 64 * each), rel=0.15)


@pytest.mark.parametrize("batching_is_free", [False, True])
def test_a_slope_is_known_after_a_few_samples(batching_is_free: bool) -> None:
    fit = LineFit(0.998, batching_is_free=batching_is_free)
    for size in (1, 2, 4) * 10:
        fit.add(size, 0.01 + 0.005 * size)
    assert fit.line[2] == pytest.approx(0.005, rel=0.1)


def test_assumes_the_cost_of_batching_when_only_one_size_is_measured() -> None:
    proportional, free = WorkTime(batching_is_free=False), WorkTime(batching_is_free=True)
    for _ in range(50):
        proportional.add(4, 0.02)
        free.add(4, 0.02)
    assert proportional.at(16) == pytest.approx(0.08, rel=0.02)
    assert free.at(16) == pytest.approx(0.02, rel=0.02)


def test_an_outlier_does_not_stop_admission() -> None:
    capacity = Capacity(0.9, 8, batching_is_free=False)
    for _ in range(50):
        capacity.add_tick(4, 0.004)
        capacity.add_codec_call(32, 0.008)
    capacity.add_tick(4, 2.0)
    assert capacity.admits(32)


def measure(capacity: Capacity, sizes: list[int], busy: float) -> None:
    """Adds samples of a machine on which a tick has mostly fixed cost."""
    for size in sizes:
        capacity.add_tick(size, busy * (0.0075 + 0.0005 * size))
        capacity.add_codec_call(size * 8, busy * (0.0055 + 0.00006 * 8 * size))


@pytest.mark.parametrize("alone", [300, 3000])
def test_admits_a_measured_batch_size_under_contention_and_afterwards(alone: int) -> None:
    """Even if only single streams were measured for a minute."""
    capacity = Capacity(0.9, 8, batching_is_free=False)
    measure(capacity, [1, 2, 4, 8] * 100, busy=1)
    assert capacity.admits(8)
    measure(capacity, [1] * alone, busy=5)
    assert capacity.frame_seconds(8) == pytest.approx(5 * (0.01267), rel=0.15)
    assert capacity.admits(8)
    measure(capacity, [1] * 150, busy=1)
    assert capacity.frame_seconds(8) == pytest.approx(0.01267, rel=0.2)
    assert capacity.admits(16)


def test_large_batches_measured_under_contention_cost_at_most_in_proportion() -> None:
    capacity = Capacity(0.9, 8, batching_is_free=False)
    for _ in range(100):
        capacity.add_tick(1, 0.002)
        capacity.add_tick(8, 0.040)
        capacity.add_codec_call(8, 0.001)
    mean = (0.002 + 0.040) / 9
    assert capacity.frame_seconds(16) <= 1.05 * (16 * mean + 16 * 0.001 / 8)


def test_the_largest_measured_size_costs_what_it_did() -> None:
    work = WorkTime(batching_is_free=True)
    for size, seconds in [(1, 0.002), (8, 0.040)] * 100:
        work.add(size, seconds)
    assert work.at(8) == pytest.approx(0.040, rel=0.01)
    assert work.at(1) == pytest.approx(0.002, rel=0.01)


@pytest.mark.parametrize("batching_is_free", [True, False])
def test_a_size_between_measured_ones_costs_what_lies_between_them(batching_is_free: bool) -> None:
    cost = CostBySize(batching_is_free=batching_is_free)
    for size, seconds in [(1, 0.002), (8, 0.037), (64, 0.051)] * 100:
        cost.add(size, seconds)
    assert [cost.at(size) for size in (1, 4, 8, 36, 64)] == pytest.approx([0.002, 0.017, 0.037, 0.044, 0.051])


def tick_of(streams: int) -> float:
    """About the times of one H200."""
    return 0.002 + 13e-6 * streams


def test_a_size_keeps_its_cost_while_others_are_measured() -> None:
    """1 000 callers end, then one speaks for a minute, then 600 come."""
    capacity = Capacity(0.9, 16, batching_is_free=True)
    for streams in range(1, 1001):
        capacity.add_tick(streams, tick_of(streams))
    for streams in range(1000, 300, -1):
        capacity.add_tick(streams, 2 * tick_of(streams))
    for streams in [1, 2] * 1000:
        capacity.add_tick(streams, tick_of(streams))
    assert tick_of(600) < capacity.tick_seconds(600) < 2.2 * tick_of(600)
    assert capacity.tick_seconds(1) == pytest.approx(tick_of(1), rel=0.1)
    for streams in [1, 2] * 1000:
        capacity.add_tick(streams, 1.3 * tick_of(streams))
    assert capacity.tick_seconds(600) < 1.4 * 2.2 * tick_of(600)


def test_ticks_follow_the_load_though_all_of_them_have_a_prefill() -> None:
    capacity = Capacity(0.9, 16, batching_is_free=True)
    for streams in [*range(1, 1001, 7)] * 3:
        capacity.add_tick(streams, tick_of(streams))
        capacity.add_tick(streams, tick_of(streams) + 59e-5, prefill_rows=59)
    for busy in (2.5, 1.0):
        for i in range(100):
            rows = 59 * (1 + i % 20)
            capacity.add_tick(900 + i, busy * (tick_of(900 + i) + rows * 1e-5), prefill_rows=rows)
        assert capacity.tick_seconds(950) == pytest.approx(busy * tick_of(950), rel=0.15)
        assert capacity.first_audio_seconds(950, 590) == pytest.approx(busy * (tick_of(950) + 590e-5), rel=0.2)


def test_frame_time_is_the_sum_of_talker_and_codec() -> None:
    capacity = Capacity(0.9, 8, batching_is_free=False)
    for rows in (1, 8, 16) * 20:
        capacity.add_tick(rows, 0.002 * rows)
        capacity.add_codec_call(8 * rows, 0.002 * 8 * rows)
    assert capacity.frame_seconds(10) == pytest.approx(0.04, rel=0.05)
    assert capacity.admits(17)
    assert not capacity.admits(20)


def of_a_codec(seconds: Callable[[int], float]) -> Capacity:
    """Whose codec calls take that long, by their frames."""
    capacity = Capacity(0.9, 8, batching_is_free=False)
    assert capacity.call_frames(1, 0.0, 16) == 16, "nothing is measured"
    for size in (1, 2, 4, 8, 16) * 50:
        capacity.add_codec_call(size, seconds(size))
    return capacity


@pytest.mark.parametrize(
    ("seconds", "streams", "frames"),
    [
        (lambda frames: 0.0025 * frames, 1, 16),
        (lambda frames: 0.001 + 0.007 * frames, 9, 5),
        (lambda frames: 0.001 + 0.007 * frames, 12, 16),
        (lambda frames: 0.045 * frames, 1, 16),
    ],
    ids=["calls are short", "half a frame", "too many streams for short calls", "one frame takes too long"],
)
def test_a_codec_call_is_short_where_the_codec_keeps_up(
    seconds: Callable[[int], float], streams: int, frames: int
) -> None:
    assert of_a_codec(seconds).call_frames(streams, math.inf, 16) == frames


@pytest.mark.parametrize(
    ("lead", "streams", "frames"),
    [(1.0, 4, 6), (0.03, 4, 4), (0.02, 4, 2), (0.001, 4, 1), (-0.1, 4, 1), (0.001, 8, 2), (0.001, 14, 16)],
)
def test_a_codec_call_ends_before_an_urgent_listener_has_heard_all(lead: float, streams: int, frames: int) -> None:
    assert of_a_codec(lambda frames: 0.004 + 0.0058 * frames).call_frames(streams, lead, 16) == frames


class Player(Listener):
    """Also records the arrival time of each chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[float] = []

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None:
        super().send(pcm)
        self.arrivals.append(time.perf_counter())

    @property
    def largest_stall(self) -> float:
        """Longest wait, in seconds, of a player that starts with the first chunk."""
        chunks = [len(pcm) / SAMPLES_PER_FRAME * FRAME_SECONDS for pcm in self.pcm]
        dry, stalls = self.arrivals[0] + chunks[0], [0.0]
        for arrival, seconds in zip(self.arrivals[1:], chunks[1:], strict=True):
            stalls.append(arrival - dry)
            dry = max(dry, arrival) + seconds
        return max(stalls)


def test_streams_beyond_real_time_wait_and_running_ones_never_stall() -> None:
    harness = Harness(slots=32, load_limit=LOAD_LIMIT)
    harness.runner.row_seconds = ROW_SECONDS
    harness.engine.start()
    try:
        players = [Player() for _ in range(3 * FITTING)]
        for player in players:
            harness.speak(frames=20, listener=player)
        running = 0
        while not all(player.ended.wait(0.005) for player in players):
            running = max(running, harness.engine.scheduler.table.in_use.num_active)
        assert 2 <= running <= FITTING + 1
        assert all(player.error is None for player in players)
        assert max(player.largest_stall for player in players) < FRAME_SECONDS / 2
        firsts = [player.arrivals[0] for player in players]
        assert all(earlier <= later + 0.1 for earlier, later in pairwise(firsts)), "streams start in order of arrival"
        eventually(harness.is_empty)
    finally:
        harness.engine.close()


def declare_costs(capacity: Capacity, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declares costs in place of measured ones, which other load on the machine increases."""
    add_tick, add_call = capacity.add_tick, capacity.add_codec_call
    monkeypatch.setattr(capacity, "add_tick", lambda streams, _, rows: add_tick(streams, ROW_SECONDS * streams, rows))
    monkeypatch.setattr(capacity, "add_codec_call", lambda frames, _: add_call(frames, 1e-5 * frames))


def test_refuses_streams_beyond_real_time_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(slots=32, load_limit=LOAD_LIMIT, refuse=True)
    declare_costs(harness.engine.scheduler.capacity, monkeypatch)
    harness.runner.row_seconds = ROW_SECONDS
    harness.engine.start()
    try:
        first = harness.speak(frames=200)
        eventually(lambda: len(first.pcm) > 3)
        admitted: list[Listener] = []

        def speak_until_refused() -> None:
            while len(admitted) < 3 * FITTING:
                admitted.append(harness.speak(frames=8))

        # None ends while others come.
        harness.runner.gate.clear()
        with pytest.raises(Unavailable, match="real time"):
            speak_until_refused()
        harness.runner.gate.set()
        assert 1 <= len(admitted) <= FITTING
        assert all(listener.ended.wait(WAIT) and listener.error is None for listener in admitted)
    finally:
        harness.runner.gate.set()
        harness.engine.close()


def has_audio_or_error(listener: Listener) -> bool:
    return len(listener.signatures()) == 2 or listener.error is not None


@pytest.mark.parametrize("refuse", [False, True], ids=["wait", "refuse"])
def test_streams_that_wait_for_text_do_not_count_towards_capacity(refuse: bool) -> None:
    harness = Harness(slots=32, load_limit=LOAD_LIMIT, refuse=refuse)
    harness.runner.row_seconds = ROW_SECONDS
    harness.engine.start()
    try:
        for number in range(3 * FITTING):
            stream, listener = make_stream(f"open {number}", Listener(), max_frames=50), Listener()
            stream.sink, stream.is_open = listener, True
            stream.prompt.trailing, stream.prompt.is_open = [1], True
            harness.engine.submit(stream)
            harness.engine.update(stream, lambda: None)
            eventually(partial(has_audio_or_error, listener))
            assert listener.error is None
        assert harness.speak(frames=20).ended.wait(WAIT)
        assert harness.listeners[-1].error is None
        assert harness.engine.scheduler.table.in_use.num_active == 0
    finally:
        harness.engine.close()


def test_what_further_rows_add_to_a_prefill_is_unknown_before_the_first() -> None:
    capacity = Capacity(0, 8, batching_is_free=False)
    assert capacity.added_prefill_seconds(59, 118) == math.inf
    for rows in (59, 590) * 20:
        capacity.add_tick(1, 0.002)
        capacity.add_tick(1, 0.002 + 0.001 + rows * 1e-5, prefill_rows=rows)
    assert capacity.added_prefill_seconds(59, 118) == pytest.approx(59e-5, rel=0.1)
