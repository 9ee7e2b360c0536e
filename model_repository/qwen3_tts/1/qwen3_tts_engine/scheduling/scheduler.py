"""Forms batches and moves streams between statuses. No tensors, no threads."""

import numpy as np

from qwen3_tts_engine.core.batches import MILLION, Batch, Chunks, Frames, Newcomer, TextFeed
from qwen3_tts_engine.core.streams import NONE, FinishReason, Status, Stream
from qwen3_tts_engine.interfaces import SchedulerLimits
from qwen3_tts_engine.request import Unavailable
from qwen3_tts_engine.scheduling.admission import Admission
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.endings import EndDetector
from qwen3_tts_engine.scheduling.newcomers import NewcomerPolicy
from qwen3_tts_engine.scheduling.page_pool import PagePool
from qwen3_tts_engine.scheduling.paging import Paging
from qwen3_tts_engine.scheduling.slot_table import Pool, SlotTable

# Ends after which the rest of a part's text is spoken, if there is one.
BY_ITSELF = (FinishReason.STOP, FinishReason.INCOMPLETE, FinishReason.SILENCE)


class Scheduler:
    def __init__(self, table: SlotTable, limits: SchedulerLimits, capacity: Capacity) -> None:
        self.table = table
        self.limits = limits
        self.capacity = capacity
        self.slots = Pool(len(table.streams))
        self.paging = Paging(table, limits.page_size, limits.num_pages, capacity)
        self.admission = Admission(table, self.slots, self.paging, capacity, limits)
        self.newcomers = NewcomerPolicy(table, self.admission.queue, capacity, limits.max_prefill_seconds)
        self._detector = EndDetector(table, limits)
        self.live: dict[str, Stream] = {}
        # Running streams with text not yet fed to the runner.
        self._pending_text: dict[str, Stream] = {}

    @property
    def pages(self) -> PagePool:
        return self.paging.pool

    def submit(self, stream: Stream) -> None:
        """Queue a stream for a slot; one without a prompt first waits for text.

        Raises Unavailable when the stream is not admitted.
        """
        if len(stream.prompt):
            self._enqueue(stream)
        else:
            self._hold(stream)
        self.live[stream.key] = stream

    def update(self, stream: Stream) -> bool:
        """Handle a changed text; True when that ends the stream and nothing is left to decode.

        Raises Unavailable when a held stream is not admitted with its first text.
        """
        match stream.status:
            case Status.HOLDING if len(stream.prompt):
                self._enqueue(stream)
            case Status.RESTING if stream.following:
                self._begin_next_part(stream)
            case Status.RESTING if not stream.is_open:
                return self._drain(stream)
            case Status.PARKED:
                stream.prompt.take_arrived()
                self.table.set_bounds(stream.slot, stream)
            case Status.RUNNING:
                self._pending_text[stream.key] = stream
        return False

    def next_batch(self, now: float) -> Batch:
        """Admit streams that fit, then select those that generate a frame: all, or the most urgent up to max_batch.

        New streams may get a batch of their own.
        """
        feeds = self._feed()
        grown = self.paging.grow(now)
        # `grow` may have preempted some of these streams; their text is prefilled later.
        feeds = [feed for feed in feeds if self.table.pages[feed.slot]]
        newcomers, rows = self._admit(now)
        table = self.table.in_use
        slots = np.flatnonzero(table.runnable)
        others = len(slots) - len(newcomers)
        if newcomers and others and self.newcomers.go_alone(now, len(newcomers), rows, others):
            slots = np.sort([newcomer.slot for newcomer in newcomers])
        if len(slots) > self.limits.max_batch:
            order = np.argsort(table.deadline[slots], kind="stable")
            slots = np.sort(slots[order[: self.limits.max_batch]])
        table.launched[slots] += 1
        return Batch(newcomers, feeds, grown, slots, table.generation[slots], rows)

    def has_work(self, now: float) -> bool:
        can_run = self.table.in_use.runnable.any() or self._pending_text
        return bool(can_run or self.paging.ready() or self.admission.next(now))

    def collect(self, batch: Batch, frames: Frames, now: float) -> list[Stream]:
        """Store a tick's frames; returns the streams that ended and have nothing left to decode."""
        table, slots = self.table, batch.slots
        self.paging.cache_prefixes(batch.newcomers)
        live = table.talking[slots] & (table.generation[slots] == batch.generations)
        stored = live & ~frames.ended
        kept = slots[stored]
        if frames.spoken is not None:
            self._observe(kept, frames.spoken[stored])
        table.codes[kept, table.written[kept]] = frames.codes[stored]
        table.written_at[kept, table.written[kept]] = now
        table.written[kept] += 1
        capped = stored & (table.written[slots] >= table.frame_limit[slots])
        done = {slot: self._end_reason(slot) for slot in slots[live & frames.ended].tolist()}
        done |= dict.fromkeys(slots[capped].tolist(), FinishReason.LENGTH)
        done |= dict.fromkeys(self._detector.looping(slots[stored & ~capped]).tolist(), FinishReason.REPETITION)
        return [stream for slot, reason in done.items() if (stream := self._end_part(slot, reason))]

    def cut_silent(self, chunks: Chunks) -> set[Stream]:
        """End the parts that have been silent for too long with decoded `chunks`; returns the streams that ended."""
        silent = self._detector.silent(chunks.slots)
        return {stream for slot in silent if (stream := self._cut_silent(self.table.streams[slot]))}

    def end(self, stream: Stream) -> bool:
        """End a stream in any status; False if it had ended already."""
        if self.live.pop(stream.key, None) is None:
            return False
        if stream.status is Status.WAITING:
            self.admission.queue.remove(stream)
        self.table.move(stream, Status.ENDED)
        if stream.slot >= 0:
            stream.frames = int(self.table.decoded[stream.slot])
            self._free_pages(stream)
            self.table.written[stream.slot] = self.table.decoded[stream.slot]
            if not self.table.decoding[stream.slot]:
                self._release(stream)
        return True

    def settle(self, drained: list[Stream]) -> set[Stream]:
        """Free the slots of completely decoded streams; returns those that had not ended already."""
        ended = {stream for stream in drained if self.end(stream)}
        for stream in drained:
            if stream not in ended:
                self._release(stream)
        return ended

    def check_integrity(self) -> None:
        """Raise AssertionError when a slot, page or stream is lost, shared, or inconsistent with a status."""
        self.slots.check_integrity()
        self.paging.check_integrity()
        self.table.check_integrity()
        in_slots = [stream for stream in self.table.streams if stream is not None]
        assert len(in_slots) == self.slots.num_used, "a slot is in use without a stream"
        in_queue = self.admission.queue
        assert all(stream.status is Status.WAITING for stream in in_queue), "a queued stream is not WAITING"
        holding = [stream for stream in self.live.values() if stream.status is Status.HOLDING]
        living = [stream for stream in (*in_queue, *holding, *in_slots) if stream.status is not Status.ENDED]
        assert sorted(map(id, living)) == sorted(map(id, self.live.values())), "a stream is lost, or in two places"
        assert all(s.status is Status.RUNNING for s in self._pending_text.values()), "a stream with text does not run"

    def _enqueue(self, stream: Stream) -> None:
        self.admission.check(stream)
        self.table.move(stream, Status.WAITING)
        self.admission.queue.append(stream)

    def _hold(self, stream: Stream) -> None:
        """Hold a stream until its first text, outside of the queue. Raises Unavailable when too many are held."""
        count = sum(other.status is Status.HOLDING for other in self.live.values())
        if count >= self.limits.max_waiting + self.slots.size:
            raise Unavailable(f"busy: {count} streams wait for their first text")
        self.table.move(stream, Status.HOLDING)

    def _begin_next_part(self, stream: Stream) -> None:
        """Switch to the next part in the same slot; its prompt is prefilled once pages are free."""
        stream.next_part()
        stream.prompt.take_arrived()
        self.table.begin_part(stream.slot, stream)
        self.paging.queue(stream)

    def _feed(self) -> list[TextFeed]:
        feeds = []
        for stream in self._pending_text.values():
            prompt, slot = stream.prompt, stream.slot
            start = len(prompt.trailing)
            if ids := prompt.take_arrived():
                late = bool(self.table.launched[slot] - self.table.part_start[slot] > start)
                feeds.append(TextFeed(slot, start, ids, prompt.is_open, late, prompt.num_spoken))
                self.table.set_bounds(slot, stream)
                self.paging.expect(stream)
        self._pending_text.clear()
        return feeds

    def _admit(self, now: float) -> tuple[list[Newcomer], int]:
        """Start parked streams, then queued ones: one, or all that can be prefilled in time; also the rows of that."""
        newcomers: list[Newcomer] = []
        rows, first, limit = 0, 0, 0.0
        while (stream := self._next_start(now)) is not None:
            more = rows + self.paging.num_rows(stream)
            if newcomers:
                limit = limit or self.newcomers.prefill_seconds(now)
                if self.capacity.added_prefill_seconds(first, more) > limit:
                    break
            rows, first = more, first or more
            newcomers.append(self._start(stream, now))
        return newcomers, rows

    def _next_start(self, now: float) -> Stream | None:
        if self.paging.parked and (ready := self.paging.ready()):
            return ready[0] if self.paging.make_room(ready[0], now) else None
        return self.admission.next(now)

    def _start(self, stream: Stream, now: float) -> Newcomer:
        table = self.table
        if stream.status is Status.WAITING:
            self.admission.take(stream)
            stream.prompt.take_arrived()
            table.open(self.slots.allocate(1)[0], stream)
        num_cached = self.paging.assign_pages(stream, now)
        made = slice(table.part_start[stream.slot], table.written[stream.slot])
        token = stream.words.token_of(stream.part) if stream.words else 0
        return Newcomer(
            stream, stream.slot, stream.pages.copy(), table.codes[stream.slot, made].copy(), num_cached, token
        )

    def _observe(self, slots: np.ndarray, spoken: np.ndarray) -> None:
        """Tell streams with word times what their next frames speak; `spoken` as in Frames."""
        for slot, (token, millionths) in zip(slots.tolist(), spoken.tolist(), strict=True):
            stream = self.table.streams[slot]
            if stream and stream.words:
                confidence = None if millionths == NONE else millionths / MILLION
                stream.words.observe(int(self.table.written[slot]), stream.part, token, confidence)

    def _cut_silent(self, stream: Stream | None) -> Stream | None:
        """End a part after its decoded frames; returns the stream if that ends it."""
        assert stream is not None
        if stream.status is not Status.RUNNING or stream.prompt.is_open:
            return None
        self.table.written[stream.slot] = self.table.decoded[stream.slot]
        return self._end_part(stream.slot, FinishReason.SILENCE)

    def _end_reason(self, slot: int) -> FinishReason:
        return FinishReason.STOP if self._detector.is_complete(slot) else FinishReason.INCOMPLETE

    def _end_part(self, slot: int, reason: FinishReason) -> Stream | None:
        """Called after a part's last frame; returns the stream if that ends it and all is decoded."""
        stream = self.table.streams[slot]
        assert stream is not None
        self.paging.learn(stream)
        if reason not in BY_ITSELF or not stream.continue_part():
            stream.cut(reason)
        has_next_part = stream.is_open or stream.following
        if not has_next_part or self.table.written[slot] >= stream.max_frames:
            return stream if self._drain(stream) else None
        self._free_pages(stream)
        self.table.end_part(slot)
        self.table.move(stream, Status.RESTING)
        if stream.following:
            self._begin_next_part(stream)
        return None

    def _drain(self, stream: Stream) -> bool:
        """Called after a stream's last frame; ends it and returns True when no frame is left to decode."""
        self.table.move(stream, Status.DRAINING)
        self._free_pages(stream)
        if self.table.decoding[stream.slot] or self.table.in_use.pending[stream.slot]:
            return False
        return self.end(stream)

    def _release(self, stream: Stream) -> None:
        self.slots.free([stream.slot])
        self.table.close(stream)

    def _free_pages(self, stream: Stream) -> None:
        """Free the pages of a stream that generates no more frames, and drop its pending text."""
        self._pending_text.pop(stream.key, None)
        self.paging.free(stream)
