"""Decides how many newcomers a tick prefills, and whether they make their first frame without the other streams."""

import math

from qwen3_tts_engine.scheduling.capacity import URGENT_LEAD, Capacity, urgent_lead
from qwen3_tts_engine.scheduling.slot_table import SlotTable

# The first newcomer of a group waits for the prefill of the last.
MAX_PREFILL_SECONDS = 0.025
# Share of the time that newcomers' ticks without the other streams may take.
ALONE_SHARE = 0.1


class NewcomerPolicy:
    def __init__(self, table: SlotTable, capacity: Capacity, max_prefill_seconds: float) -> None:
        self._table = table
        self._capacity = capacity
        self._max_seconds = max_prefill_seconds
        self._next_alone = -math.inf

    def prefill_seconds(self, now: float) -> float:
        """Time that further prefills may add to the next tick's first one, at least as long as the tick.

        The first listener to underrun must still get audio in time, from that tick and a codec call after it.
        """
        streams = self._table.in_use.num_active
        left = self._lead(now) - URGENT_LEAD - self._capacity.first_audio_seconds(streams, 0)
        return min(max(left, self._capacity.tick_seconds(streams)), self._max_seconds)

    def go_alone(self, now: float, count: int, rows: int) -> bool:
        """Whether `count` newcomers with prompts of `rows` in all make their first frame alone.

        That saves them the others' part of the tick, and costs the others a tick: allowed while they have enough
        audio buffered, and seldom enough to cost little throughput.
        """
        spare = self._lead(now) - urgent_lead(self._capacity.frame_seconds(self._table.in_use.num_active))
        if now < self._next_alone or self._capacity.first_audio_seconds(count, rows) > spare:
            return False
        self._next_alone = now + self._capacity.tick_seconds(count) / ALONE_SHARE
        return True

    def _lead(self, now: float) -> float:
        """Seconds until the first listener underruns; infinite without listeners."""
        table = self._table.in_use
        return float(table.deadline[table.runnable & table.started].min(initial=math.inf)) - now
