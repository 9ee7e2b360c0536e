"""Talker and codec that take turns on one device."""

import random
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.engine.test_engine import WAIT, Harness, eventually


class InTurn(Harness):
    """Records the ticks launched and in flight at the start and end of each codec call."""

    def __init__(self, slots: int = 4) -> None:
        super().__init__(slots, max_waiting=1000, lookahead=1, take_turns=True)
        self.launched: list[int] = []
        self.in_flight: list[int] = []
        decode = self.codec.decode

        def recorded(chunks: Any) -> Any:
            self._record()
            time.sleep(0.002)
            answer = decode(chunks)
            self._record()
            return answer

        self.codec.decode = recorded  # type: ignore[method-assign]

    def _record(self) -> None:
        self.launched.append(self.runner.launched)
        self.in_flight.append(self.runner.launched - self.runner.collected)


@pytest.fixture
def harness() -> Iterator[InTurn]:
    harness = InTurn()
    harness.engine.start()
    yield harness
    harness.engine.close()


def test_no_tick_is_in_flight_during_a_codec_call(harness: InTurn) -> None:
    listeners = [harness.speak(seed, frames=5 + 7 * seed) for seed in range(12)]
    assert all(listener.ended.wait(WAIT) for listener in listeners)
    assert set(harness.in_flight) == {0}
    assert harness.launched[::2] == harness.launched[1::2]


def test_the_first_chunk_is_decoded_after_one_tick(harness: InTurn) -> None:
    assert harness.speak(frames=4).ended.wait(WAIT)
    assert harness.codec.calls[0] == (1, 1)
    assert harness.launched[0] == 1


def test_ticks_overlap_while_no_chunk_is_ready(harness: InTurn) -> None:
    """Chunks have eight frames: up to eight ticks run between calls, each launched before the last one is read."""
    waiting = []
    collect = harness.runner.collect

    def recorded(tick: Any) -> Any:
        waiting.append(harness.runner.launched - harness.runner.collected)
        return collect(tick)

    harness.runner.collect = recorded  # type: ignore[method-assign]
    harness.runner.tick_seconds = 0.001
    assert harness.speak(frames=64).ended.wait(WAIT)
    assert len(harness.codec.calls) < 64
    assert max(waiting) == 2


def test_calls_and_ticks_alternate(harness: InTurn) -> None:
    """Chunks of several lengths delay the talker by one call at most."""
    harness.runner.tick_seconds = 0.0005
    listeners = []
    for seed in range(24):
        listeners.append(harness.speak(seed, frames=30 + seed))
        time.sleep(0.002)
    assert all(listener.ended.wait(WAIT) for listener in listeners)
    before = harness.launched[::2]
    # The talker has work until the last streams end.
    assert sum(a == b for a, b in pairwise(before)) <= 4


def test_random_cancels_leave_no_stream_waiting(harness: InTurn) -> None:
    chance = random.Random(0)
    listeners = []
    for key in range(200):
        listeners.append(harness.speak(key, frames=chance.randint(1, 12)))
        if chance.random() < 0.5:
            harness.engine.cancel(str(chance.randint(0, key)))
        time.sleep(chance.uniform(0, 0.002))
    assert all(listener.ended.wait(WAIT) for listener in listeners)
    eventually(harness.is_empty)
    assert harness.speak(frames=9).ended.wait(WAIT)
