"""Decides whether newcomers wait for others, how many a tick prefills, and whether their first frame is made alone."""

import math
from collections import deque
from collections.abc import Callable

from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.scheduling.capacity import URGENT_LEAD, Capacity, urgent_lead
from qwen3_tts_engine.scheduling.slot_table import SlotTable

# The first newcomer of a group waits for the prefill of the last.
MAX_PREFILL_SECONDS = 0.025
# Share of the time that newcomers' ticks without the other streams may cost.
ALONE_SHARE = 0.01
# Requests sent at once reach the queue at smaller intervals than this: a busy host takes 0.1 to 0.3 ms for each.
MAX_INTERVAL = 0.0005
# Weight of an interval in their average.
INTERVAL_WEIGHT = 0.1


class NewcomerPolicy:
    def __init__(self, table: SlotTable, queue: deque[Stream], capacity: Capacity, max_prefill_seconds: float) -> None:
        self._table = table
        self._queue = queue
        self._capacity = capacity
        self._max_seconds = max_prefill_seconds
        self._next_alone = self._last_arrival = -math.inf
        self._interval = MAX_INTERVAL / 2
        self.more_follow: Callable[[], bool] = lambda: False
        """Whether requests have been received that are not queued yet."""

    def arrive(self, now: float) -> None:
        """A stream is queued."""
        if (interval := now - self._last_arrival) < MAX_INTERVAL:
            self._interval += INTERVAL_WEIGHT * (interval - self._interval)
        self._last_arrival = now

    def seconds_to_gather(self, now: float) -> float:
        """How long an idle device should wait for another newcomer; 0 if none seems to follow or it costs too much.

        One that is late waits for a whole tick, and later for a prefill and a codec call of its own; waiting for it
        costs everybody else an interval.
        """
        # First, since it is all that a lone newcomer needs.
        if len(self._queue) < 2 and not self.more_follow():
            return 0.0
        streams = self._table.in_use.num_active + len(self._queue)
        if streams * self._interval > self._capacity.tick_seconds(streams):
            return 0.0
        return max(self._last_arrival + MAX_INTERVAL - now, 0.0)

    def prefill_seconds(self, now: float) -> float:
        """Time that further prefills may add to the next tick's first one, at least as long as the tick.

        The first listener to underrun must still get audio in time, from that tick and a codec call after it.
        """
        streams = self._table.in_use.num_active
        left = self._lead(now) - URGENT_LEAD - self._capacity.first_audio_seconds(streams, 0)
        return min(max(left, self._capacity.tick_seconds(streams)), self._max_seconds)

    def go_alone(self, now: float, count: int, rows: int, others: int) -> bool:
        """Whether `count` newcomers with prompts of `rows` in all make their first frame without the `others`.

        That saves them the others' part of the tick, and costs the others a tick. Allowed while they have enough audio
        buffered, and seldom enough to cost little throughput: two ticks take longer than one, unless a stream costs
        as much alone as among others.
        """
        capacity = self._capacity
        spare = self._lead(now) - urgent_lead(capacity.frame_seconds(self._table.in_use.num_active))
        if now < self._next_alone or capacity.first_audio_seconds(count, rows) > spare:
            return False
        costs = capacity.tick_seconds(count) + capacity.tick_seconds(others) - capacity.tick_seconds(count + others)
        # The costs are not a number before ticks have been measured.
        self._next_alone = now + max(0.0, costs) / ALONE_SHARE
        return True

    def _lead(self, now: float) -> float:
        """Seconds until the first listener underruns; infinite without listeners."""
        table = self._table.in_use
        return float(table.deadline[table.runnable & table.started].min(initial=math.inf)) - now
