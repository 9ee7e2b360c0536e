"""Which streams run: admission, the next batch, and what becomes of its frames. No tensors, no threads."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from qwen3_tts_engine.capacity import Capacity
from qwen3_tts_engine.request import Unavailable
from qwen3_tts_engine.slots import Pool, SlotTable
from qwen3_tts_engine.stream import Stream


@dataclass(frozen=True)
class Newcomer:
    """An admitted stream and what it was given; the stream's own fields may change under a cancel."""

    stream: Stream
    slot: int
    pages: list[int]


@dataclass(frozen=True)
class Batch:
    """One tick: streams to prefill, and the slots (int64 [rows]) that each make a frame, newcomers included."""

    newcomers: list[Newcomer]
    slots: np.ndarray
    lives: np.ndarray

    def __len__(self) -> int:
        return len(self.slots)

    def without(self, dropped: list[Newcomer]) -> "Batch":
        """The batch without some of its newcomers: a slot that holds no prompt must not run."""
        if not dropped:
            return self
        rows = ~np.isin(self.slots, [newcomer.slot for newcomer in dropped])
        return Batch([n for n in self.newcomers if n not in dropped], self.slots[rows], self.lives[rows])


@dataclass(frozen=True)
class Frames:
    """What a tick made: codes int [rows, codebooks]; `ended` bool [rows] marks rows that sampled the end of speech."""

    codes: np.ndarray
    ended: np.ndarray


@dataclass(frozen=True)
class SchedulerLimits:
    page_size: int
    num_pages: int
    max_batch: int
    max_waiting: int
    prefill_rows: int
    """Prompt rows that one tick may prefill beside the running streams; one newcomer always gets in."""
    refuse_overload: bool = False
    """Refuse a stream that could not be served in real time, instead of letting it wait."""


class Scheduler:
    def __init__(self, table: SlotTable, limits: SchedulerLimits, capacity: Capacity) -> None:
        self.table = table
        self.limits = limits
        self.capacity = capacity
        self.slots = Pool(len(table.streams))
        self.pages = Pool(limits.num_pages)
        self.waiting: deque[Stream] = deque()
        self.live: dict[str, Stream] = {}

    def submit(self, stream: Stream) -> None:
        """Queue a stream; raises Unavailable when the queue is full, or it could never fit, or not in real time."""
        if self._num_pages(stream) > self.pages.size:
            tokens = self.pages.size * self.limits.page_size
            raise Unavailable(f"{stream.num_positions} positions wanted, the key/value cache holds {tokens}")
        if len(self.waiting) >= self.limits.max_waiting and not self._fits(stream):
            raise Unavailable(f"busy: {self.slots.num_used} streams run, {len(self.waiting)} wait")
        if self.limits.refuse_overload and not self.capacity.admits(self.num_talking + len(self.waiting) + 1):
            raise Unavailable(f"busy: {self.num_talking} streams talk, another one would not be served in real time")
        self.waiting.append(stream)
        self.live[stream.key] = stream

    def next_batch(self) -> Batch:
        """Admit whoever fits, then choose who makes a frame: everyone, or the most urgent when the batch is full."""
        table = self.table
        newcomers = self._admit()
        slots = np.flatnonzero(table.talking & (table.launched < table.limit))
        if len(slots) > self.limits.max_batch:
            order = np.argsort(table.deadline[slots], kind="stable")
            slots = np.sort(slots[order[: self.limits.max_batch]])
        table.launched[slots] += 1
        return Batch(newcomers, slots, table.life[slots])

    @property
    def has_work(self) -> bool:
        table = self.table
        return bool((table.talking & (table.launched < table.limit)).any()) or self._can_admit

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
        return [stream for slot in done if (stream := self._hang_up(int(slot)))]

    def end(self, stream: Stream) -> bool:
        """Take a stream out, wherever it is; False when it had ended before."""
        if self.live.pop(stream.key, None) is None:
            return False
        if stream.slot < 0:
            self.waiting.remove(stream)
            return True
        self._free_pages(stream)
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
        self.pages.check_integrity()
        held = [s for s in self.table.streams if s is not None]
        assert len(held) == self.slots.num_used, "a slot is in use without a stream"
        assert sum(len(s.pages) for s in held) == self.pages.num_used, "pages are in use without a stream"
        assert all(s.slot < 0 and not s.pages for s in self.waiting), "a waiting stream holds something"
        assert {id(s) for s in self.live.values()} >= {id(s) for s in self.waiting}, "an ended stream waits"

    @property
    def num_talking(self) -> int:
        return int(self.table.talking.sum())

    def _num_pages(self, stream: Stream) -> int:
        return -(-stream.num_positions // self.limits.page_size)

    def _fits(self, stream: Stream) -> bool:
        return not self.waiting and self._has_room(stream)

    @property
    def _can_admit(self) -> bool:
        return bool(self.waiting) and self._has_room(self.waiting[0])

    def _has_room(self, stream: Stream) -> bool:
        if not self.slots.num_free or self.pages.num_free < self._num_pages(stream):
            return False
        return self.capacity.admits(self.num_talking + 1)

    def _admit(self) -> list[Newcomer]:
        newcomers: list[Newcomer] = []
        rows = 0
        while self._can_admit:
            rows += len(self.waiting[0].prompt)
            if newcomers and rows > self.limits.prefill_rows:
                break
            stream = self.waiting.popleft()
            # All that the stream may come to need at once: it is never put back for want of a page.
            stream.pages = self.pages.allocate(self._num_pages(stream))
            stream.slot = self.slots.allocate(1)[0]
            self.table.open(stream.slot, stream)
            newcomers.append(Newcomer(stream, stream.slot, stream.pages))
        return newcomers

    def _hang_up(self, slot: int) -> Stream | None:
        """The talker is done with a slot; returns its stream when the codec has nothing left to do for it."""
        stream = self.table.streams[slot]
        assert stream is not None
        self.table.talking[slot] = False
        self._free_pages(stream)
        if self.table.decoding[slot] or self.table.pending[slot]:
            return None
        self.end(stream)
        return stream

    def _free_pages(self, stream: Stream) -> None:
        self.pages.free(stream.pages)
        stream.pages = []
