"""The queue before the slots: which streams may enter it, and which starts next."""

from collections import deque
from itertools import islice

from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.interfaces import SchedulerLimits
from qwen3_tts_engine.request import Unavailable
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.paging import Paging
from qwen3_tts_engine.scheduling.slot_table import Pool, SlotTable

# While the first stream of the queue waits for pages: how many streams are examined, and how many may overtake it.
LOOKAHEAD, MAX_OVERTAKING = 8, 16


class Admission:
    def __init__(
        self, table: SlotTable, slots: Pool, paging: Paging, capacity: Capacity, limits: SchedulerLimits
    ) -> None:
        self.queue: deque[Stream] = deque()
        self._table = table
        self._slots = slots
        self._paging = paging
        self._capacity = capacity
        self._limits = limits
        self._overtaken = 0

    def check(self, stream: Stream) -> None:
        """Raises Unavailable when the queue is full, the stream can never fit, or real time is not possible."""
        used, waiting = self._slots.num_used, len(self.queue)
        if self._paging.max_pages(stream) > self._paging.pool.size:
            tokens = self._paging.pool.size * self._limits.page_size
            raise Unavailable(f"{stream.num_positions} positions required, the key/value cache holds {tokens}")
        if waiting >= self._limits.max_waiting and not self._starts_at_once(stream):
            raise Unavailable(f"busy: {used} streams run, {waiting} wait")
        if not self._limits.refuse_overload:
            return
        if self._slots.num_free <= waiting:
            raise Unavailable(f"busy: {used} streams run, max_streams is {self._slots.size}")
        active = self._table.in_use.num_active
        if not self._capacity.admits(active + waiting + 1):
            raise Unavailable(f"busy: {active} streams talk, another one would exceed real time")

    def next(self, now: float) -> Stream | None:
        """The first stream of the queue, or one behind it that fits while the first has too few pages."""
        if not self.queue:
            return None
        if not self._slots.num_used:
            return self.queue[0]  # `check` has ensured that alone it fits
        if not self._has_capacity():
            return None
        count = LOOKAHEAD if self._overtaken < MAX_OVERTAKING else 1
        return next((stream for stream in islice(self.queue, count) if self._paging.has_room(stream, now)), None)

    def take(self, stream: Stream) -> None:
        """Remove a starting stream from the queue."""
        self._overtaken = self._overtaken + 1 if stream is not self.queue[0] else 0
        self.queue.remove(stream)

    @property
    def awaits_first_audio(self) -> bool:
        """Whether streams talk of which none has a decoded frame, none is queued, and no codec call is under way.

        Their chunks are best decoded at once and by the talker's thread: with a tick beside it the first call took
        0.7 ms longer (one stream on an H200), and the codec's thread 0.6 ms to begin.
        """
        table = self._table.in_use
        if self.queue or table.decoding.any() or not table.talking.any():
            return False
        return not (table.talking & (table.decoded > 0)).any()

    def _starts_at_once(self, stream: Stream) -> bool:
        return not self.queue and self._has_capacity() and self._paging.has_room(stream, stream.arrived)

    def _has_capacity(self) -> bool:
        """Whether a slot and real-time capacity are free for one more stream."""
        return self._slots.num_free > 0 and self._capacity.admits(self._table.in_use.num_active + 1)
