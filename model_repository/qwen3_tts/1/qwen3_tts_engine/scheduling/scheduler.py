"""Which streams run: admission, the next batch, and what becomes of its frames. No tensors, no threads."""

from collections import deque
from dataclasses import dataclass
from itertools import islice

import numpy as np

from qwen3_tts_engine.core import Batch, Frames, Newcomer, Stream, TextFeed
from qwen3_tts_engine.request import Unavailable
from qwen3_tts_engine.scheduling.capacity import Capacity, urgent_lead
from qwen3_tts_engine.scheduling.paging import Paging
from qwen3_tts_engine.scheduling.slot_table import Pool, SlotTable

# Audio beyond the urgent that every listener must have for newcomers to go alone: what their prefill, their first frame
# and a codec call take (measured on one H200).
COMFORT = 0.01
# Of a queue whose first stream waits for pages, how many behind it are looked at, and how many may go before it.
LOOKAHEAD, MAX_OVERTAKING = 8, 16


@dataclass(frozen=True)
class SchedulerLimits:
    page_size: int
    num_pages: int
    max_batch: int
    max_waiting: int
    prefill_rows: int
    """Prompt rows that one tick may prefill beside the running streams; one newcomer always gets in."""
    refuse_overload: bool = False
    """Refuse a stream that has no slot or could not be served in real time, instead of letting it wait."""


class Scheduler:
    def __init__(self, table: SlotTable, limits: SchedulerLimits, capacity: Capacity) -> None:
        self.table = table
        self.limits = limits
        self.capacity = capacity
        self.slots = Pool(len(table.streams))
        self.paging = Paging(table, limits.page_size, limits.num_pages, capacity)
        self.waiting: deque[Stream] = deque()
        self.live: dict[str, Stream] = {}
        # Streams whose first words have not come, between two parts, and with text that the runner has not had.
        self.held: dict[str, Stream] = {}
        self._resting: dict[str, Stream] = {}
        self._told: dict[str, Stream] = {}
        self._overtaken = 0

    @property
    def pages(self) -> Pool:
        return self.paging.pool

    def hold(self, stream: Stream) -> None:
        """Take in a stream that waits for its first words; it holds nothing. Raises Unavailable when many do."""
        if len(self.held) >= self.limits.max_waiting + self.slots.size:
            raise Unavailable(f"busy: {len(self.held)} streams wait for their first words")
        self.held[stream.key] = self.live[stream.key] = stream

    def text_came(self, stream: Stream) -> bool:
        """Look at a stream whose text has changed; True when that ends it and nothing is left to decode.

        Raises Unavailable for the first words of a stream when there is no room for it.
        """
        if stream.key in self._resting:
            if stream.following:
                del self._resting[stream.key]
                self._turn(stream)
            elif not stream.is_open:
                return self._hang_up(stream.slot) is not None
        elif stream.key in self.held:
            if len(stream.prompt):
                self.submit(stream)
                del self.held[stream.key]
        elif stream.key in self.paging.parked:
            stream.prompt.take_arrived()
            self.table.set_bounds(stream.slot, stream)
        elif stream.slot >= 0 and self.table.talking[stream.slot]:
            self._told[stream.key] = stream
        return False

    def submit(self, stream: Stream) -> None:
        """Queue a stream; raises Unavailable when the queue is full, or it could never fit, or not in real time."""
        if self.paging.most(stream) > self.pages.size:
            tokens = self.pages.size * self.limits.page_size
            raise Unavailable(f"{stream.num_positions} positions wanted, the key/value cache holds {tokens}")
        if len(self.waiting) >= self.limits.max_waiting and not self._fits(stream):
            raise Unavailable(f"busy: {self.slots.num_used} streams run, {len(self.waiting)} wait")
        if self.limits.refuse_overload:
            if self.slots.num_free <= len(self.waiting):
                raise Unavailable(f"busy: {self.slots.num_used} streams run, max_streams are {self.slots.size}")
            if not self.capacity.admits(self.num_active + len(self.waiting) + 1):
                raise Unavailable(f"busy: {self.num_active} streams talk, another one would not be served in real time")
        self.waiting.append(stream)
        self.live[stream.key] = stream

    def next_batch(self, now: float) -> Batch:
        """Admit streams that fit, then select those that make a frame: all, or the most urgent when the batch is full.

        New streams get a batch of their own while all others have enough audio buffered.
        """
        feeds = self._feed()
        grown = self.paging.grow(now)
        # One of them may have lost its pages; it is prefilled with its text later.
        feeds = [feed for feed in feeds if self.table.pages[feed.slot]]
        newcomers = self._admit(now)
        table = self.table.in_use
        slots = np.flatnonzero(table.runnable)
        if newcomers and self._is_comfortable(now):
            slots = np.sort([newcomer.slot for newcomer in newcomers])
        if len(slots) > self.limits.max_batch:
            order = np.argsort(table.deadline[slots], kind="stable")
            slots = np.sort(slots[order[: self.limits.max_batch]])
        table.launched[slots] += 1
        return Batch(newcomers, feeds, grown, slots, table.life[slots])

    def has_work(self, now: float) -> bool:
        if self.table.in_use.runnable.any() or self._told:
            return True
        return bool(self.paging.ready()) or self._next_waiting(now) is not None

    def collect(self, batch: Batch, frames: Frames, now: float) -> list[Stream]:
        """Store a tick's frames; returns the streams that ended with nothing left to decode."""
        table, slots = self.table, batch.slots
        live = table.talking[slots] & (table.life[slots] == batch.lives)
        stored = live & ~frames.ended
        kept = slots[stored]
        table.codes[kept, table.written[kept]] = frames.codes[stored]
        table.written_at[kept, table.written[kept]] = now
        table.written[kept] += 1
        done = slots[live & (frames.ended | (table.written[slots] >= table.limit[slots]))]
        return [stream for slot in done if (stream := self._finish_part(int(slot)))]

    def end(self, stream: Stream) -> bool:
        """Take a stream out, wherever it is; False when it had ended before."""
        if self.live.pop(stream.key, None) is None:
            return False
        if stream.slot < 0:
            if self.held.pop(stream.key, None) is None:
                self.waiting.remove(stream)
            return True
        self._forget(stream)
        self.paging.free(stream)
        self.table.talking[stream.slot] = False
        self.table.written[stream.slot] = self.table.sent[stream.slot]
        if not self.table.decoding[stream.slot]:
            self.release(stream)
        return True

    def release(self, stream: Stream) -> None:
        """Give back the slot of an ended stream that the codec is not working on."""
        self.table.close(stream.slot)
        self.slots.free([stream.slot])
        stream.slot = -1

    def check_integrity(self) -> None:
        """Raise AssertionError when a slot, a page or a stream is lost, or held by two."""
        self.slots.check_integrity()
        self.paging.check_integrity()
        held = [s for s in self.table.streams if s is not None]
        assert len(held) == self.slots.num_used, "a slot is in use without a stream"
        assert all(s.slot < 0 and not s.pages for s in self.waiting), "a waiting stream holds something"
        talking = (*self._resting.values(), *self._told.values(), *self.paging.parked.values())
        expecting = (*self.waiting, *self.held.values(), *talking)
        assert {id(s) for s in self.live.values()} >= {id(s) for s in expecting}, "an ended stream waits"
        assert all(self.table.talking[s.slot] for s in talking), "text is kept for a stream that does not talk"

    @property
    def num_active(self) -> int:
        """Streams that cost work at present."""
        return self.table.in_use.num_active

    def _is_comfortable(self, now: float) -> bool:
        """Whether every listener whose next frame would wait has audio for some time to come."""
        table = self.table.in_use
        listening = table.runnable & (table.sent > 0)
        needed = urgent_lead(self.capacity.frame_seconds(self.num_active)) + COMFORT
        return bool((table.deadline[listening] - now > needed).all())

    def _fits(self, stream: Stream) -> bool:
        return not self.waiting and self._may_start and self.paging.has_room(stream, stream.arrived)

    @property
    def _may_start(self) -> bool:
        """Whether there are a slot and time for one more."""
        return self.slots.num_free > 0 and self.capacity.admits(self.num_active + 1)

    def _next_waiting(self, now: float) -> Stream | None:
        """The first that waits, or one behind it while there are no pages for that one."""
        if not self.waiting or not self._may_start:
            return None
        count = LOOKAHEAD if self._overtaken < MAX_OVERTAKING else 1
        return next((stream for stream in islice(self.waiting, count) if self.paging.has_room(stream, now)), None)

    def _turn(self, stream: Stream) -> None:
        """Go on to the next part, in the same slot; its prompt is prefilled once there are pages."""
        stream.next_part()
        stream.prompt.take_arrived()
        self.table.begin_part(stream.slot, stream)
        self.paging.parked[stream.key] = stream

    def _feed(self) -> list[TextFeed]:
        feeds = []
        for stream in self._told.values():
            prompt, slot = stream.prompt, stream.slot
            start = len(prompt.trailing)
            if ids := prompt.take_arrived():
                late = bool(self.table.launched[slot] - self.table.part_start[slot] > start)
                feeds.append(TextFeed(slot, start, ids, prompt.is_open, late))
                self.table.set_bounds(slot, stream)
                self.paging.expect(stream)
        self._told.clear()
        return feeds

    def _admit(self, now: float) -> list[Newcomer]:
        """Those that have a slot and wait for pages, then as many of those that wait as fit beside them."""
        newcomers: list[Newcomer] = []
        rows = 0
        while (stream := self._next_start(now)) is not None:
            rows += self.paging.num_rows(stream)
            if newcomers and rows > self.limits.prefill_rows:
                break
            newcomers.append(self._start(stream, now))
        return newcomers

    def _next_start(self, now: float) -> Stream | None:
        if self.paging.parked and (ready := self.paging.ready()):
            return ready[0] if self.paging.make_room(ready[0], now) else None
        return self._next_waiting(now)

    def _start(self, stream: Stream, now: float) -> Newcomer:
        table = self.table
        if stream.slot < 0:
            self._overtaken = self._overtaken + 1 if stream is not self.waiting[0] else 0
            self.waiting.remove(stream)
            stream.slot = self.slots.allocate(1)[0]
            stream.prompt.take_arrived()
            table.open(stream.slot, stream)
        self.paging.place(stream, now)
        made = slice(table.part_start[stream.slot], table.written[stream.slot])
        return Newcomer(stream, stream.slot, stream.pages.copy(), table.codes[stream.slot, made].copy())

    def _finish_part(self, slot: int) -> Stream | None:
        """The talker is done with a part; returns the stream when that ends it and nothing is left to decode."""
        stream = self.table.streams[slot]
        assert stream is not None
        self.paging.learn(stream)
        goes_on = stream.is_open or stream.following
        if not goes_on or self.table.written[slot] >= stream.max_frames:
            return self._hang_up(slot)
        self._told.pop(stream.key, None)
        self.paging.free(stream)
        self.table.rest(slot)
        if stream.following:
            self._turn(stream)
        else:
            self._resting[stream.key] = stream
        return None

    def _hang_up(self, slot: int) -> Stream | None:
        """The talker is done with a slot; returns its stream when the codec has nothing left to do for it."""
        stream = self.table.streams[slot]
        assert stream is not None
        self.table.talking[slot] = False
        self._forget(stream)
        self.paging.free(stream)
        if self.table.decoding[slot] or self.table.in_use.pending[slot]:
            return None
        self.end(stream)
        return stream

    def _forget(self, stream: Stream) -> None:
        for kept in (self._resting, self._told, self.paging.parked):
            kept.pop(stream.key, None)
