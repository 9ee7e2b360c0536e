"""Assigns pages of the key/value cache to streams. No tensors, no threads; docs/kv-cache.md proves that none stalls."""

import numpy as np

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.core import Status, Stream
from qwen3_tts_engine.scheduling.capacity import Capacity, SpeechLength
from qwen3_tts_engine.scheduling.slot_table import FIRST_AUDIO_LEAD, Pool, SlotTable

# A parked stream comes back before its listener has less audio than this, in the pages of one who has more than that.
URGENT_SECONDS, SPARE_SECONDS = 1.0, 3.0
# How long a listener who has heard nothing may be kept waiting, as if so much audio were there.
PATIENCE_SECONDS = 2.0
# Least part of its expected pages that a stream is charged with at admission: streams are at different points of their
# way, so that each holds half of its pages at a time.
SMALLEST_CHARGE = 0.5
NO_PAGES = np.zeros((0, 3), np.int64)


class Paging:
    """Streams hold the pages of what was made, and get further ones as they go on.

    When none is free, the stream whose listener has the most audio is *parked*: it keeps its slot and its codes, and
    once pages are free its prompt and its codes are prefilled again.
    """

    def __init__(self, table: SlotTable, page_size: int, num_pages: int, capacity: Capacity) -> None:
        self.pool = Pool(num_pages)
        self.parked: dict[str, Stream] = {}
        self._lengths = SpeechLength()
        self._table = table
        self._page_size = page_size
        self._capacity = capacity

    def most(self, stream: Stream) -> int:
        """Pages that a stream may come to need."""
        return self._count(stream.num_positions)

    def num_rows(self, stream: Stream) -> int:
        """Rows to prefill before a stream can go on: the prompt, and what was made of it."""
        slot, table = stream.slot, self._table
        return len(stream.prompt) + (0 if slot < 0 else int(table.written[slot] - table.part_start[slot]))

    def has_room(self, stream: Stream, now: float) -> bool:
        """Whether a stream may begin: with what is expected of those that run, and a page more for each of them."""
        table = self._table.in_use
        idle = self._idle(now)
        running = (table.pages > 0) & ~idle
        share = self._share()
        charged = np.maximum(table.pages, table.expected * share)[running].sum()
        needed = self._start(stream)
        spare = np.count_nonzero(running & (table.room < table.limit))
        available = self.pool.num_free + int(table.pages[idle].sum())
        fits = charged + max(needed, self._expected(stream) * share) <= self.pool.size
        return bool(fits and needed + spare <= available)

    def place(self, stream: Stream, now: float) -> None:
        """Give a stream in a slot the pages that its prompt, its codes and the next frame take."""
        self.parked.pop(stream.key, None)
        self._table.move(stream, Status.RUNNING)
        self._take_from(self._longest_idle(now), self._start(stream))
        stream.pages = self.pool.allocate(self._start(stream))
        self.expect(stream)
        table, slot = self._table, stream.slot
        table.pages[slot] = len(stream.pages)
        # The first frame comes of the prompt's own pass; each one after it takes the position behind the one before.
        frames = len(stream.pages) * self._page_size - len(stream.prompt) + 1
        table.room[slot] = table.part_start[slot] + frames

    def learn(self, stream: Stream) -> None:
        """Look at how long a part was that the talker is done with."""
        table, slot = self._table, stream.slot
        frames = int(table.written[slot] - table.part_start[slot])
        self._lengths.add(stream.prompt.num_spoken, frames, was_cut=bool(table.written[slot] >= table.limit[slot]))

    def expect(self, stream: Stream) -> None:
        """Look at how much text a stream has by now."""
        self._table.expected[stream.slot] = self._expected(stream)

    def grow(self, now: float) -> np.ndarray:
        """Give every stream that is to go on a page where it needs one.

        Returns int64 [pages, 3]: slot, place in the slot's page table, page.
        """
        table = self._table
        short = np.flatnonzero(table.in_use.runnable & (table.in_use.launched >= table.in_use.room))
        if not len(short):
            return NO_PAGES
        while len(short) > self.pool.num_free:
            self.park(int(np.argmax(self._patience(now))))
            short = short[table.pages[short] > 0]
        pages = self.pool.allocate(len(short))
        for slot, page in zip(short.tolist(), pages, strict=True):
            stream = table.streams[slot]
            assert stream is not None
            stream.pages.append(page)
        places = table.pages[short].astype(np.int64)
        table.pages[short] += 1
        table.room[short] += self._page_size
        return np.stack([short, places, np.array(pages, np.int64)], axis=1)

    def park(self, slot: int) -> None:
        """Take the pages of a running stream, whose frames in flight are lost and made again."""
        stream = self._table.streams[slot]
        assert stream is not None
        self.free(stream)
        self._table.rewind(slot)
        self.queue(stream)

    def queue(self, stream: Stream) -> None:
        """Let a stream wait in its slot until there are pages for its prompt."""
        self._table.move(stream, Status.PARKED)
        self.parked[stream.key] = stream

    def ready(self) -> list[Stream]:
        """Parked streams that can go on, whose listener has the least audio first."""
        table = self._table
        ready = [s for s in self.parked.values() if table.launched[s.slot] < table.horizon[s.slot]]
        if len(ready) > 1:
            listening = self._listening()
            ready.sort(key=lambda stream: float(listening[stream.slot]))
        return ready

    def make_room(self, stream: Stream, now: float) -> bool:
        """Whether a parked stream may go on now; others are parked for it when its listener is about to run dry."""
        table = self._table.in_use
        if self.has_room(stream, now) or not table.runnable.any():
            return self._take_from(self._longest_idle(now), self._start(stream))
        listening = self._listening()
        if listening[stream.slot] > now + URGENT_SECONDS:
            return False
        spare = np.flatnonzero(table.runnable & (listening > now + SPARE_SECONDS))
        return self._take_from(spare[np.argsort(-listening[spare])], self._start(stream))

    def free(self, stream: Stream) -> None:
        """Take back all pages of a stream, which waits for none any more."""
        self.parked.pop(stream.key, None)
        self.pool.free(stream.pages)
        stream.pages = []
        self._table.pages[stream.slot] = 0

    def check_integrity(self) -> None:
        """Raise AssertionError when a page is lost, held by two, or missing where a frame was launched."""
        self.pool.check_integrity()
        held = [s for s in self._table.streams if s is not None]
        pages = [page for stream in held for page in stream.pages]
        assert len(pages) == len(set(pages)) == self.pool.num_used, "a page is held by two, or by no stream"
        assert all(len(s.pages) == self._table.pages[s.slot] for s in held), "the table is wrong about pages"
        parked = [s for s in held if s.status is Status.PARKED]
        assert {s.key for s in parked} == self.parked.keys(), "a stream waits for pages and is not parked, or is lost"
        assert all(s.status is Status.RUNNING for s in held if s.pages), "a stream that does not run holds pages"
        table = self._table.in_use
        assert (table.launched <= table.room)[table.pages > 0].all(), "a frame was launched without a page"

    def _count(self, positions: int) -> int:
        return -(-positions // self._page_size)

    def _start(self, stream: Stream) -> int:
        """Pages without which a stream cannot go on."""
        return self._count(self.num_rows(stream) + 1)

    def _expected(self, stream: Stream) -> int:
        prompt = stream.prompt
        frames = min(self._lengths.at(prompt.num_spoken), stream.part_frames(prompt))
        return self._count(int(len(prompt) + frames))

    def _share(self) -> float:
        """How much of its expected pages a stream is charged with.

        A stream that is made in half of the time in which it is heard can live on its audio for the other half.
        """
        load = self._capacity.frame_seconds(self._table.in_use.num_active + 1) / FRAME_SECONDS
        return min(max(load, SMALLEST_CHARGE), 1.0)

    def _idle(self, now: float) -> np.ndarray:
        """Slots that hold pages for nothing: they wait for text and their listener, or the machine, for them."""
        table = self._table.in_use
        held: np.ndarray = table.waiting & (table.pages > 0)
        if not table.runnable.any():
            return held
        idle: np.ndarray = held & table.paused & (table.deadline < now)
        return idle

    def _longest_idle(self, now: float) -> np.ndarray:
        idle = np.flatnonzero(self._idle(now))
        longest: np.ndarray = idle[np.argsort(self._table.deadline[idle])]
        return longest

    def _listening(self) -> np.ndarray:
        """Until when each slot's listener can do without further audio, perf_counter seconds."""
        table = self._table.in_use
        listening: np.ndarray = table.deadline + np.where(table.sent > 0, 0.0, FIRST_AUDIO_LEAD + PATIENCE_SECONDS)
        return listening

    def _patience(self, now: float) -> np.ndarray:
        """The order in which slots are parked, the largest first."""
        listening = np.where(self._table.in_use.runnable, self._listening(), -np.inf)
        patience: np.ndarray = np.where(self._idle(now), np.inf, listening)
        return patience

    def _take_from(self, slots: np.ndarray, count: int) -> bool:
        """Park `slots`, in their order, until `count` pages are free; none when all of them would not do."""
        if self.pool.num_free + int(self._table.pages[slots].sum()) < count:
            return False
        for slot in slots.tolist():
            if self.pool.num_free >= count:
                break
            self.park(slot)
        return True
