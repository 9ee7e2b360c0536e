"""Assigns pages of the key/value cache to streams. No tensors, no threads; docs/kv-cache.md proves progress."""

import numpy as np

from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.core.streams import Status, Stream
from qwen3_tts_engine.scheduling.capacity import Capacity, SpeechLength
from qwen3_tts_engine.scheduling.page_pool import PagePool
from qwen3_tts_engine.scheduling.slot_table import FIRST_AUDIO_LEAD, SlotTable

# A parked stream with less buffered audio than URGENT_SECONDS may preempt one with more than SPARE_SECONDS.
URGENT_SECONDS, SPARE_SECONDS = 1.0, 3.0
# Buffered audio that a stream before its first audio counts as having.
FIRST_AUDIO_SECONDS = 2.0
# Minimum share of its expected pages that a stream is charged at admission: streams are at different points, so that
# on average each holds half of its pages.
MIN_CHARGE = 0.5
# A stream starts with its expected pages while this share of the cache stays free, and grows by GROWTH_PAGES while
# enough are free: each growth costs a transfer beside the tick.
RESERVE_SHARE, GROWTH_PAGES = 0.5, 4
NO_PAGES = np.zeros((0, 3), np.int64)


class Paging:
    """Allocates pages on demand as streams grow.

    When no page is free, the stream with the most buffered audio is *parked*, that is preempted: it keeps its slot and
    codes, and its prompt and codes are prefilled again once pages are free.
    """

    def __init__(self, table: SlotTable, page_size: int, num_pages: int, capacity: Capacity) -> None:
        self.pool = PagePool(num_pages)
        self.parked: dict[str, Stream] = {}
        self._lengths = SpeechLength()
        self._table = table
        self._page_size = page_size
        self._capacity = capacity

    def max_pages(self, stream: Stream) -> int:
        """Maximum number of pages of a stream."""
        return self._num_pages(stream.num_positions)

    def num_rows(self, stream: Stream) -> int:
        """Rows to prefill: the prompt without its cached prefix, and the frames generated from it so far."""
        return self._num_positions(stream) - len(self.pool.match(stream.prompt.prefix_hashes)) * self._page_size

    def has_room(self, stream: Stream, now: float) -> bool:
        """Whether a stream may start, given the charges of the running ones and a spare page for each of them."""
        table, needed, expected = self._table.in_use, self._start_pages(stream), self._expected(stream)
        # An upper limit of both sums below, which take much longer: in a burst this is asked for each newcomer. A spare
        # page is one of the stream's expected ones.
        if self.pool.num_used + int(table.expected_pages.sum()) + max(needed, expected) <= self.pool.size:
            return True
        idle = self._idle(now)
        running = (table.pages > 0) & ~idle
        share = self._charge()
        # Shared pages are charged once.
        charged = np.maximum(table.pages, table.expected_pages * share)[running].sum()
        charged -= table.pages.sum() - self.pool.num_used
        spare = np.count_nonzero(running & (table.page_limit < table.frame_limit))
        available = self.pool.num_free + self._freed_by(np.flatnonzero(idle))
        fits = charged + max(needed, expected * share) <= self.pool.size
        return bool(fits and needed + spare <= available)

    def assign_pages(self, stream: Stream, now: float) -> int:
        """Assign the pages for a stream's prompt, codes and next frame.

        Returns the number of rows in the cached prefix.
        """
        self.parked.pop(stream.key, None)
        self._table.move(stream, Status.RUNNING)
        count = self._start_pages(stream)
        self._preempt_idle(now, count)
        cached = self.pool.match(stream.prompt.prefix_hashes)
        self.pool.share(cached)
        self.expect(stream)
        table, slot = self._table, stream.slot
        reserved = max(count, int(table.expected_pages[slot]))
        if reserved <= self.pool.num_free - self.pool.size * RESERVE_SHARE:
            count = reserved
        stream.pages = cached + self.pool.allocate(count - len(cached))
        table.pages[slot] = len(stream.pages)
        # The prefill yields the first frame; each later one takes one more position.
        frames = len(stream.pages) * self._page_size - len(stream.prompt) + 1
        table.page_limit[slot] = table.part_start[slot] + frames
        return len(cached) * self._page_size

    def cache_prefixes(self, newcomers: list[Newcomer]) -> None:
        """Cache the prefixes of prefilled prompts whose streams still hold these pages."""
        for newcomer in newcomers:
            hashes = newcomer.stream.prompt.prefix_hashes
            if newcomer.stream.pages[: len(hashes)] == newcomer.pages[: len(hashes)]:
                self.pool.cache(hashes, newcomer.pages)

    def learn(self, stream: Stream) -> None:
        """Record the length of a finished part."""
        table, slot = self._table, stream.slot
        frames, was_cut = table.written[slot] - table.part_start[slot], table.written[slot] >= table.frame_limit[slot]
        self._lengths.add(stream.prompt.num_spoken, int(frames), was_cut=bool(was_cut))

    def expect(self, stream: Stream) -> None:
        """Update a stream's expected pages from its current text."""
        self._table.expected_pages[stream.slot] = self._expected(stream)

    def grow(self, now: float) -> np.ndarray:
        """Allocate pages for every runnable stream that needs one.

        Returns int64 [pages, 3]: slot, index in the slot's page table, page.
        """
        table = self._table
        short = np.flatnonzero(table.in_use.runnable & (table.in_use.launched >= table.in_use.page_limit))
        if not len(short):
            return NO_PAGES
        while len(short) > self.pool.num_free:
            self.park(int(np.argmax(self._preemption_priority(now))))
            short = short[table.pages[short] > 0]
        step = GROWTH_PAGES if len(short) * GROWTH_PAGES <= self.pool.num_free else 1
        return np.concatenate([NO_PAGES, *(self._extend(slot, step) for slot in short.tolist())])

    def park(self, slot: int) -> None:
        """Preempt a running stream; its frames in flight are discarded and generated again."""
        stream = self._table.streams[slot]
        assert stream is not None
        self.free(stream)
        self._table.rewind(slot)
        self.queue(stream)

    def queue(self, stream: Stream) -> None:
        """Queue a stream, in its slot, for the pages of its prompt."""
        self._table.move(stream, Status.PARKED)
        self.parked[stream.key] = stream

    def ready(self) -> list[Stream]:
        """Parked streams that can resume, least buffered audio first."""
        table = self._table
        ready = [s for s in self.parked.values() if table.launched[s.slot] < table.text_limit[s.slot]]
        if len(ready) > 1:
            underrun_at = self._underrun_at()
            ready.sort(key=lambda stream: float(underrun_at[stream.slot]))
        return ready

    def make_room(self, stream: Stream, now: float) -> bool:
        """Whether a parked stream may resume now; preempts others when its listener is about to underrun."""
        table = self._table.in_use
        if self.has_room(stream, now) or not table.runnable.any():
            return self._preempt_idle(now, self._start_pages(stream))
        underrun_at = self._underrun_at()
        if underrun_at[stream.slot] > now + URGENT_SECONDS:
            return False
        spare = np.flatnonzero(table.runnable & (underrun_at > now + SPARE_SECONDS))
        return self._preempt(spare[np.argsort(-underrun_at[spare])], self._start_pages(stream))

    def free(self, stream: Stream) -> None:
        """Free all pages of a stream and remove it from the page queue."""
        self.parked.pop(stream.key, None)
        self.pool.free(stream.pages)
        stream.pages = []
        self._table.pages[stream.slot] = 0

    def check_integrity(self) -> None:
        """Raise AssertionError when a page is lost, shared wrongly, or missing for a launched frame."""
        held = [s for s in self._table.streams if s is not None]
        self.pool.check_integrity(stream.pages for stream in held)
        assert all(len(s.pages) == len(set(s.pages)) for s in held), "a stream holds a page twice"
        assert all(len(s.pages) == self._table.pages[s.slot] for s in held), "the page counts of the table are wrong"
        parked = [s for s in held if s.status is Status.PARKED]
        assert {s.key for s in parked} == self.parked.keys(), "the page queue disagrees with the parked streams"
        assert all(s.status is Status.RUNNING for s in held if s.pages), "a stream that does not run holds pages"
        table = self._table.in_use
        assert (table.launched <= table.page_limit)[table.pages > 0].all(), "a frame was launched without a page"

    def _extend(self, slot: int, count: int) -> np.ndarray:
        """Allocate up to `count` pages, at least one; returns them as `grow` does."""
        table, stream = self._table, self._table.streams[slot]
        assert stream is not None
        held = len(stream.pages)
        pages = self.pool.allocate(max(1, min(count, self.max_pages(stream) - held)))
        stream.pages += pages
        table.pages[slot] += len(pages)
        table.page_limit[slot] += len(pages) * self._page_size
        return np.array([(slot, held + i, page) for i, page in enumerate(pages)], np.int64)

    def _num_pages(self, positions: int) -> int:
        return -(-positions // self._page_size)

    def _num_positions(self, stream: Stream) -> int:
        """Positions of the prompt and of the frames generated from it so far."""
        slot, table = stream.slot, self._table
        return len(stream.prompt) + (0 if slot < 0 else int(table.written[slot] - table.part_start[slot]))

    def _start_pages(self, stream: Stream) -> int:
        """Pages that a stream requires to start or resume."""
        return self._num_pages(self._num_positions(stream) + 1)

    def _expected(self, stream: Stream) -> int:
        prompt = stream.prompt
        frames = min(self._lengths.at(prompt.num_spoken), stream.part_frames(prompt))
        return self._num_pages(int(len(prompt) + frames))

    def _charge(self) -> float:
        """Share of its expected pages that a stream is charged.

        A stream generated at twice real time can be parked half of the time without underrun.
        """
        return min(max(self._capacity.load(self._table.in_use.num_active + 1), MIN_CHARGE), 1.0)

    def _idle(self, now: float) -> np.ndarray:
        """Slots that hold pages while they wait for text and all audio was heard, or no slot is runnable."""
        table = self._table.in_use
        held: np.ndarray = table.waiting & (table.pages > 0)
        if not table.runnable.any():
            return held
        idle: np.ndarray = held & table.paused & (table.deadline < now)
        return idle

    def _preempt_idle(self, now: float, count: int) -> bool:
        """Whether `count` pages are free, after idle slots were parked for them, the longest idle first."""
        if self.pool.num_free >= count:
            return True
        idle = np.flatnonzero(self._idle(now))
        return self._preempt(idle[np.argsort(self._table.deadline[idle])], count)

    def _underrun_at(self) -> np.ndarray:
        """When each slot's listener underruns without further audio, perf_counter seconds."""
        table = self._table.in_use
        underrun_at: np.ndarray = table.deadline + np.where(table.started, 0.0, FIRST_AUDIO_LEAD + FIRST_AUDIO_SECONDS)
        return underrun_at

    def _preemption_priority(self, now: float) -> np.ndarray:
        """Priority of each slot for preemption, the largest first."""
        underrun_at = np.where(self._table.in_use.runnable, self._underrun_at(), -np.inf)
        priority: np.ndarray = np.where(self._idle(now), np.inf, underrun_at)
        return priority

    def _freed_by(self, slots: np.ndarray) -> int:
        """Pages that parking all of `slots` would free."""
        streams = (self._table.streams[slot] for slot in slots.tolist())
        return self.pool.num_freed_by(stream.pages for stream in streams if stream)

    def _preempt(self, slots: np.ndarray, count: int) -> bool:
        """Park `slots` in order until `count` pages are free; parks none if all would not suffice."""
        if self.pool.num_free + self._freed_by(slots) < count:
            return False
        for slot in slots.tolist():
            if self.pool.num_free >= count:
                break
            self.park(slot)
        return True
