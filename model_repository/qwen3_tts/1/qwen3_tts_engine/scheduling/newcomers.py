"""Decides how many newcomers a tick prefills, and whether they make their first frame without the other streams."""

import math

from qwen3_tts_engine.scheduling.capacity import Capacity, urgent_lead
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
        """Time for prefills in the next tick: what the listeners' buffers allow, but at least as long as the tick."""
        least = self._capacity.tick_seconds(self._table.in_use.num_active)
        return min(max(self._slack(now), least), self._max_seconds)

    def go_alone(self, now: float, count: int, rows: int) -> bool:
        """Whether `count` newcomers with prompts of `rows` in all make their first frame alone.

        That saves them the others' part of the tick, and costs the others a tick: allowed while they have enough
        audio buffered, and seldom enough to cost little throughput.
        """
        if now < self._next_alone or self._capacity.first_audio_seconds(count, rows) > self._slack(now):
            return False
        self._next_alone = now + self._capacity.tick_seconds(count) / ALONE_SHARE
        return True

    def _slack(self, now: float) -> float:
        """Seconds until the first listener becomes urgent; infinite without listeners."""
        table = self._table.in_use
        deadlines = table.deadline[table.runnable & (table.sent > 0)]
        lead = urgent_lead(self._capacity.frame_seconds(table.num_active))
        return float(deadlines.min(initial=math.inf)) - now - lead
