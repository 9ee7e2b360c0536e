"""Index pools, and the per-slot state of all streams."""

import heapq

import numpy as np

from qwen3_tts_engine.core.streams import TRANSITIONS, Status, Stream


class Pool:
    """Allocates indices below `size`, the lowest free ones first, which keeps memory dense."""

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
        """Allocate `count` indices; raises IndexError, and allocates none, when fewer are free."""
        if count > len(self._free):
            raise IndexError(f"{count} requested, {len(self._free)} free")
        taken = [heapq.heappop(self._free) for _ in range(count)]
        self._used.update(taken)
        return taken

    def free(self, indices: list[int]) -> None:
        """Free indices; raises KeyError for one that is not in use."""
        for index in indices:
            self._used.remove(index)
            heapq.heappush(self._free, index)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every index is either free or in use, once."""
        assert len(set(self._free)) == len(self._free), "an index is free twice"
        assert self._used.isdisjoint(self._free), "an index is free and in use"
        assert len(self._free) + len(self._used) == self.size, "an index is lost"


# Statuses in which the talker has frames left to generate.
TALKING = (Status.RUNNING, Status.PARKED, Status.RESTING)
# Sorts streams without audio before all others, oldest first.
FIRST_AUDIO_LEAD = 1e9
# `SlotTable.in_use` ends at a multiple of it.
VIEW_STEP = 32


class Columns:
    """Per-slot state in NumPy columns, so that a tick is vectorised.

    A slot is *talking* until its last frame is generated, *decoding* while the codec works on one of its chunks.
    """

    def __init__(self, num_slots: int) -> None:
        self.generation = np.zeros(num_slots, np.int64)
        """Generation counter; rejects late frames of a slot's previous stream."""
        self.talking = np.zeros(num_slots, bool)
        self.decoding = np.zeros(num_slots, bool)
        self.frame_limit = np.zeros(num_slots, np.int32)
        self.text_limit = np.zeros(num_slots, np.int32)
        """Frames that may be launched with the available text: frame_limit, or less while text is missing."""
        self.part_start = np.zeros(num_slots, np.int32)
        """Frames of the earlier parts."""
        self.launched = np.zeros(num_slots, np.int32)
        self.written = np.zeros(num_slots, np.int32)
        self.decoded = np.zeros(num_slots, np.int32)
        self.started = np.zeros(num_slots, bool)
        """Whether the listener has audio: not while leading silence is withheld."""
        self.audible = np.zeros(num_slots, bool)
        """Whether any decoded frame was."""
        self.silent = np.zeros(num_slots, np.int32)
        """Silent frames at the end of the decoded ones."""
        self.reference_frames = np.zeros(num_slots, np.int32)
        """Frames of a cloned voice's reference, which the codec state contains at the start."""
        self.deadline = np.zeros(num_slots)
        """When the listener's audio underruns, perf_counter seconds; before first audio far in the past."""
        self.pages = np.zeros(num_slots, np.int32)
        """Pages that the slot holds: none before prefill and none after the last frame."""
        self.page_limit = np.zeros(num_slots, np.int32)
        """Frames that may be launched with the slot's pages."""
        self.expected_pages = np.zeros(num_slots, np.int32)
        """Predicted pages of the whole part."""

    @property
    def runnable(self) -> np.ndarray:
        """Slots that can generate a frame, bool [slots]."""
        return self.talking & (self.launched < self.text_limit) & (self.pages > 0)

    @property
    def waiting(self) -> np.ndarray:
        """Slots that wait for text, bool [slots]."""
        return self.talking & (self.launched >= self.text_limit) & (self.text_limit < self.frame_limit)

    @property
    def paused(self) -> np.ndarray:
        """Slots that wait for text and have no frame left to decode, bool [slots]."""
        return self.waiting & (self.decoded >= self.launched)

    @property
    def num_active(self) -> int:
        """Streams that cost work: talking and not paused."""
        may_launch = (self.launched < self.text_limit) | (self.text_limit >= self.frame_limit)
        return int(np.count_nonzero(self.talking & (may_launch | (self.decoded < self.launched))))

    @property
    def pending(self) -> np.ndarray:
        """Frames not decoded yet, int32 [slots]."""
        return self.written - self.decoded


class SlotTable(Columns):
    """All slots with their streams and codes.

    `in_use` is a view that ends soon after the last slot in use, for operations over all slots: NumPy releases the GIL
    in each operation on more than 500 elements and then waits to get it back.
    """

    def __init__(self, num_slots: int, max_frames: int, num_codebooks: int) -> None:
        super().__init__(num_slots)
        self.streams: list[Stream | None] = [None] * num_slots
        self.codes = np.empty((num_slots, max_frames, num_codebooks), np.int16)
        self.written_at = np.empty((num_slots, max_frames))
        self.in_use = self._view(0)

    def move(self, stream: Stream, status: Status) -> None:
        """Change a stream's status. Raises AssertionError for a transition that is not in TRANSITIONS."""
        assert status in TRANSITIONS[stream.status], f"a stream that is {stream.status.value} cannot be {status.value}"
        stream.status = status
        if stream.slot >= 0:
            self.talking[stream.slot] = status in TALKING

    def open(self, slot: int, stream: Stream) -> None:
        self.streams[slot] = stream
        stream.slot = slot
        for flag in (self.decoding, self.started, self.audible):
            flag[slot] = False
        self.reference_frames[slot] = stream.voice.num_frames if stream.voice else 0
        self.deadline[slot] = stream.arrived - FIRST_AUDIO_LEAD
        for counter in (self.launched, self.written, self.decoded, self.silent, self.pages, self.page_limit):
            counter[slot] = 0
        self.begin_part(slot, stream)
        self._show(max(slot + 1, len(self.in_use.generation)))

    def begin_part(self, slot: int, stream: Stream) -> None:
        """Start a part after the frames written so far."""
        self.part_start[slot] = self.written[slot]
        stream.begin_part(int(self.written[slot]))
        self.set_bounds(slot, stream)

    def set_bounds(self, slot: int, stream: Stream) -> None:
        """Update frame_limit and text_limit from the prompt."""
        prompt, start = stream.prompt, self.part_start[slot]
        self.frame_limit[slot] = limit = min(stream.max_frames, start + stream.part_frames(prompt))
        # Frame t is fed text t. One frame more may be launched; its text is fed when it arrives.
        self.text_limit[slot] = min(limit, start + len(prompt.trailing) + 1) if prompt.is_open else limit

    def rewind(self, slot: int) -> None:
        """Reset to the frames read so far; frames in flight become stale."""
        self.generation[slot] += 1
        self.launched[slot] = self.written[slot]

    def end_part(self, slot: int) -> None:
        """Block launches until the next part begins."""
        self.rewind(slot)
        self.text_limit[slot] = 0

    def close(self, stream: Stream) -> None:
        slot, stream.slot = stream.slot, -1
        self.streams[slot] = None
        self.generation[slot] += 1
        count = len(self.in_use.generation)
        while count and self.streams[count - 1] is None:
            count -= 1
        self._show(count)

    def check_integrity(self) -> None:
        """Raise AssertionError where a column disagrees with its stream's status."""
        for slot, stream in enumerate(self.streams):
            assert stream is None or stream.slot == slot, "a stream is not in its slot"
            talking = stream is not None and stream.status in TALKING
            assert self.talking[slot] == talking, "a slot's talking flag disagrees with its stream's status"

    def _show(self, count: int) -> None:
        """Let `in_use` be the first `count` slots, rounded up, since a view takes 10 us."""
        count = min(-(-count // VIEW_STEP) * VIEW_STEP, len(self.generation))
        if count != len(self.in_use.generation):
            self.in_use = self._view(count)

    def _view(self, count: int) -> Columns:
        columns = Columns(0)
        for name in vars(columns):
            setattr(columns, name, getattr(self, name)[:count])
        return columns
