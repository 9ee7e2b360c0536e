"""Slots and pages: what a stream holds while it is in flight."""

import heapq

import numpy as np

from qwen3_tts_engine.core import TRANSITIONS, Status, Stream


class Pool:
    """A fixed set of indices, handed out and taken back; the lowest free ones go first, so that memory stays dense."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size))  # a heap
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._used)

    def allocate(self, count: int) -> list[int]:
        """`count` indices; raises IndexError, and takes none, when fewer are free."""
        if count > len(self._free):
            raise IndexError(f"{count} wanted, {len(self._free)} free")
        taken = [heapq.heappop(self._free) for _ in range(count)]
        self._used.update(taken)
        return taken

    def free(self, indices: list[int]) -> None:
        """Give back indices; raises KeyError for one that is not in use."""
        for index in indices:
            self._used.remove(index)
            heapq.heappush(self._free, index)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every index is either free or in use, once."""
        assert len(set(self._free)) == len(self._free), "an index is free twice"
        assert self._used.isdisjoint(self._free), "an index is free and in use"
        assert len(self._free) + len(self._used) == self.size, "an index is lost"


# Whether the talker is not done with a stream that has a slot.
TALKING = (Status.RUNNING, Status.PARKED, Status.RESTING)
# Puts streams without audio before every other, oldest first.
FIRST_AUDIO_LEAD = 1e9


class Columns:
    """What is known of slots, one array element a slot, so that a tick touches no stream one by one.

    A slot is *talking* while its talker runs, *decoding* while the codec works on a chunk of it.
    """

    def __init__(self, num_slots: int) -> None:
        self.life = np.zeros(num_slots, np.int64)
        """Counts the streams that a slot has had: tells a late frame of the last one from the next one's."""
        self.talking = np.zeros(num_slots, bool)
        self.decoding = np.zeros(num_slots, bool)
        self.limit = np.zeros(num_slots, np.int32)
        self.horizon = np.zeros(num_slots, np.int32)
        """How many frames may be launched: the limit, or less while the text of further ones has not come."""
        self.part_start = np.zeros(num_slots, np.int32)
        """Frames before the part that is spoken."""
        self.launched = np.zeros(num_slots, np.int32)
        self.written = np.zeros(num_slots, np.int32)
        self.sent = np.zeros(num_slots, np.int32)
        self.preset = np.zeros(num_slots, np.int32)
        """Frames of a cloned voice's reference, which the codec has had before the stream's own."""
        self.deadline = np.zeros(num_slots)
        """When the listener runs dry, perf_counter seconds; until the first audio the arrival, far in the past."""
        self.pages = np.zeros(num_slots, np.int32)
        """Pages that the slot holds: none before its prompt is prefilled, and none once its talker is done."""
        self.room = np.zeros(num_slots, np.int32)
        """How many frames may be launched with the pages that the slot holds."""
        self.expected = np.zeros(num_slots, np.int32)
        """Pages that the part is expected to come to need."""

    @property
    def runnable(self) -> np.ndarray:
        """Slots that may make a frame, bool [slots]."""
        return self.talking & (self.launched < self.horizon) & (self.pages > 0)

    @property
    def waiting(self) -> np.ndarray:
        """Slots that wait for text, bool [slots]."""
        return self.talking & (self.launched >= self.horizon) & (self.horizon < self.limit)

    @property
    def paused(self) -> np.ndarray:
        """Slots that wait for text and of which all that was made has been sent, bool [slots]."""
        return self.waiting & (self.sent >= self.launched)

    @property
    def num_active(self) -> int:
        """Streams that cost work: those that talk and are not paused."""
        active = (self.launched < self.horizon) | (self.horizon >= self.limit) | (self.sent < self.launched)
        return int(np.count_nonzero(self.talking & active))

    @property
    def pending(self) -> np.ndarray:
        """Frames of each slot that the codec has not had, int32 [slots]."""
        return self.written - self.sent


class SlotTable(Columns):
    """All slots, their streams and what was made of each.

    `in_use` is the same memory up to the last slot in use. What looks at every slot looks at those: NumPy gives the
    interpreter away in each operation on more than 500 elements, and then waits until other threads give it back.
    """

    def __init__(self, num_slots: int, max_frames: int, num_codebooks: int) -> None:
        super().__init__(num_slots)
        self.streams: list[Stream | None] = [None] * num_slots
        self.codes = np.empty((num_slots, max_frames, num_codebooks), np.int16)
        self.written_at = np.empty((num_slots, max_frames))
        self.in_use = self._first(0)

    def move(self, stream: Stream, status: Status) -> None:
        """Change a stream's status. Raises AssertionError for a change that TRANSITIONS does not have."""
        assert status in TRANSITIONS[stream.status], f"a stream that is {stream.status.value} cannot be {status.value}"
        stream.status = status
        if stream.slot >= 0:
            self.talking[stream.slot] = status in TALKING

    def open(self, slot: int, stream: Stream) -> None:
        self.streams[slot] = stream
        stream.slot = slot
        self.decoding[slot] = False
        self.preset[slot] = stream.voice.num_frames if stream.voice else 0
        self.deadline[slot] = stream.arrived - FIRST_AUDIO_LEAD
        for counter in (self.launched, self.written, self.sent, self.pages, self.room):
            counter[slot] = 0
        self.begin_part(slot, stream)
        if slot >= len(self.in_use.life):
            self.in_use = self._first(slot + 1)

    def begin_part(self, slot: int, stream: Stream) -> None:
        """A part's frames are counted on behind those of the parts before it."""
        self.part_start[slot] = self.written[slot]
        self.set_bounds(slot, stream)

    def set_bounds(self, slot: int, stream: Stream) -> None:
        """How far the talker may go with the text that is there."""
        prompt, start = stream.prompt, self.part_start[slot]
        self.limit[slot] = limit = min(stream.max_frames, start + stream.part_frames(prompt))
        # A frame is fed the text that has its number. The last one goes ahead and is fed as soon as there is some.
        self.horizon[slot] = min(limit, start + len(prompt.trailing) + 1) if prompt.is_open else limit

    def rewind(self, slot: int) -> None:
        """Go back to the frames that were read; those that are on their way come too late."""
        self.life[slot] += 1
        self.launched[slot] = self.written[slot]

    def end_part(self, slot: int) -> None:
        """Launch nothing until the next part begins."""
        self.rewind(slot)
        self.horizon[slot] = 0

    def close(self, stream: Stream) -> None:
        slot, stream.slot = stream.slot, -1
        self.streams[slot] = None
        self.life[slot] += 1
        count = len(self.in_use.life)
        while count and self.streams[count - 1] is None:
            count -= 1
        if count < len(self.in_use.life):
            self.in_use = self._first(count)

    def check_integrity(self) -> None:
        """Raise AssertionError where a column does not agree with its stream's status."""
        for slot, stream in enumerate(self.streams):
            assert stream is None or stream.slot == slot, "a stream is not in its slot"
            talking = stream is not None and stream.status in TALKING
            assert self.talking[slot] == talking, "a slot does not talk as its stream's status says"

    def _first(self, count: int) -> Columns:
        """The memory of the first `count` slots."""
        columns = Columns(0)
        for name in vars(columns):
            setattr(columns, name, getattr(self, name)[:count])
        return columns
