"""An idle device waits for the newcomers of a burst, as long as that costs those that wait less than it saves."""

from collections import deque

import pytest

from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.newcomers import MAX_INTERVAL, NewcomerPolicy
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, make_stream, start_in_slot

TICK, INTERVAL = 0.004, 0.0001
NOW = 5.0


class Queue:
    def __init__(self, tick_seconds: float = TICK) -> None:
        capacity = Capacity(0, 16, batching_is_free=True)
        for _ in range(100):
            capacity.add_tick(1, tick_seconds)
        self.streams: deque[Stream] = deque()
        self.table = SlotTable(4, 256, NUM_CODEBOOKS)
        self.policy = NewcomerPolicy(self.table, self.streams, capacity, 1.0)
        self.now = NOW

    def arrive(self, count: int = 1) -> None:
        """One `INTERVAL` after the other."""
        for _ in range(count):
            self.now += INTERVAL
            self.streams.append(make_stream(str(len(self.streams)), Listener(), 0, 8))
            self.policy.arrive(self.now)

    def wait(self, later: float = 0.0) -> float:
        return self.policy.seconds_to_gather(self.now + later)


def test_a_lone_newcomer_does_not_wait() -> None:
    queue = Queue()
    assert queue.wait() == 0
    queue.arrive()
    assert queue.wait() == 0


def test_one_waits_while_another_is_read() -> None:
    queue = Queue()
    queue.policy.more_follow = lambda: True
    queue.arrive()
    assert queue.wait(0.0002) == pytest.approx(MAX_INTERVAL - 0.0002)
    assert queue.wait(MAX_INTERVAL) == 0
    queue.policy.more_follow = lambda: False
    assert queue.wait() == 0


def test_a_burst_is_gathered_until_nobody_follows() -> None:
    queue = Queue()
    queue.arrive(2)
    assert queue.wait() == pytest.approx(MAX_INTERVAL)
    queue.arrive()
    assert queue.wait(0.0001) == pytest.approx(MAX_INTERVAL - 0.0001)
    assert queue.wait(MAX_INTERVAL) == 0


def test_waiting_must_cost_less_than_the_tick_that_it_saves() -> None:
    queue = Queue()
    queue.arrive(200)
    queue.streams.clear()
    # By then the interval is known.
    most = round(TICK / INTERVAL)
    queue.arrive(most - 2)
    assert queue.wait() > 0
    queue.arrive(4)
    assert queue.wait() == 0


def test_those_who_are_served_already_count() -> None:
    queue = Queue(tick_seconds=3.5 * MAX_INTERVAL / 2)
    queue.arrive(2)
    assert queue.wait() > 0
    for slot in range(2):
        start_in_slot(queue.table, slot, make_stream(f"served {slot}", Listener(), 0, 8))
    assert queue.wait() == 0


def test_later_newcomers_do_not_count_as_a_burst() -> None:
    queue = Queue()
    before = queue.policy._interval
    for _ in range(20):
        queue.now += 1.0
        queue.arrive()
    assert queue.policy._interval == before


def test_going_alone_before_any_measurement_does_not_forbid_it_later() -> None:
    """On a CPU the predicted time is infinite then."""
    capacity = Capacity(0, 16, batching_is_free=False)
    policy = NewcomerPolicy(SlotTable(4, 256, NUM_CODEBOOKS), deque(), capacity, 1.0)
    assert policy.go_alone(NOW, 1, 8, others=1)
    for streams in (1, 2) * 20:
        capacity.add_tick(streams, streams * TICK)
    assert policy.go_alone(NOW + 1, 1, 8, others=1)
