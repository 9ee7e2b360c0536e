"""Which frames go to the codec next. No tensors, no threads."""

from collections.abc import Callable
from enum import Enum

import numpy as np

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, MAX_CALL_FRAMES
from qwen3_tts_engine.core import Chunks, Stream
from qwen3_tts_engine.scheduling.capacity import urgent_lead
from qwen3_tts_engine.scheduling.slot_table import SlotTable

# How much of the listener's lead the wait for more frames may take; the rest is for the codec and for accidents. With
# half of it eight streams on two CPU cores stalled now and then, with this they did not, and had their audio sooner.
LEAD_SHARE = 0.3
LENGTHS = np.array(CHUNK_FRAMES)
# Where nothing was measured yet.
SHORTEST_FRAME = 1e-6
# A call is worth its fixed cost, two milliseconds through Triton, once so many of the talking streams share it.
WORTHWHILE_SHARE = 0.5


class Need(Enum):
    """What a codec call is made for: any chunk, an urgent one or as many as are worth it, only an urgent one.

    Urgent is first audio, or audio for a listener who is about to run dry.
    """

    ANY = 0
    WORTHWHILE = 1
    URGENT = 2

    @classmethod
    def between_ticks(cls, talker_has_work: bool, last_was_call: bool) -> "Need":
        """Of a call that delays the next tick: two in a row would keep the talker waiting."""
        if not talker_has_work:
            return cls.ANY
        return cls.URGENT if last_was_call else cls.WORTHWHILE


class Chunker:
    """Chunks of CHUNK_FRAMES: one frame for the first audio, then as long as the listener's lead allows.

    This is the one place where a chunk's length is decided. Long chunks cost the codec less; but while one is made, its
    listener lives on what was sent before.
    """

    def __init__(self, table: SlotTable, max_chunk_frames: int, frame_seconds: Callable[[int], float]) -> None:
        """`frame_seconds` says how long one frame of each of so many streams takes at present."""
        self._table = table
        self._max_chunk_frames = max_chunk_frames
        self._frame_seconds = frame_seconds

    def next_chunks(self, now: float, need: Need = Need.ANY) -> Chunks | None:
        """Ready chunks of one length, one that all urgent ones have or else the commonest; marks them as decoding.

        None where there is no such need.
        """
        table = self._table.in_use
        ready, urgent = self._ready(now)
        if not self._is_due(urgent, need):
            return None
        order = np.argsort(table.deadline[ready], kind="stable")
        ready, urgent = ready[order], urgent[order]
        lengths, last = self._lengths(ready), ~table.talking[ready]

        def together(length: int) -> np.ndarray:
            # A last chunk may be filled up to any length, and who is in a hurry takes less than there is: neither waits
            # for a call of its own.
            rows: np.ndarray = (lengths == length) | (last & (lengths < length)) | (urgent & (lengths > length))
            return rows

        if urgent[0]:
            length = int(lengths[urgent].min())
        else:
            length = max(set(lengths.tolist()), key=lambda length: (together(length).sum(), length))
        slots = ready[together(length)][: min(MAX_BATCH, MAX_CALL_FRAMES // length)]
        table.decoding[slots] = True
        return self._gather(slots, length)

    def will_be_due(self, now: float) -> bool:
        """Whether a call is worthwhile once the launched frames are made."""
        _, urgent = self._ready(now, in_flight=True)
        return self._is_due(urgent, Need.WORTHWHILE)

    def _is_due(self, urgent: np.ndarray, need: Need) -> bool:
        """Whether a call is to be made for ready chunks, of which some are urgent, bool [ready]."""
        if need is Need.ANY or not len(urgent) or urgent.any():
            return len(urgent) > 0
        enough = min(MAX_BATCH, self._table.in_use.num_active * WORTHWHILE_SHARE)
        return need is Need.WORTHWHILE and len(urgent) >= enough

    def done(self, chunks: Chunks, now: float) -> list[Stream]:
        """The codec is through with `chunks`; returns the streams of which it was the last one."""
        table, slots = self._table.in_use, chunks.slots
        table.decoding[slots] = False
        first = table.sent[slots] == 0
        start = np.where(first, now, np.maximum(table.deadline[slots], now))
        table.deadline[slots] = start + chunks.counts * FRAME_SECONDS
        table.sent[slots] += chunks.counts
        drained = ~table.talking[slots] & (table.pending[slots] <= 0)
        return [chunks.streams[i] for i in np.flatnonzero(drained)]

    def _ready(self, now: float, *, in_flight: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Slots with a chunk to send, int [ready], and whose listener has no audio, or little, bool [ready]."""
        table = self._table.in_use
        made = np.where(in_flight & table.talking, table.launched, table.written)
        pending = made - table.sent
        # What is over or waits for text sends what it has: the listener has nothing else.
        over = ~table.talking | ((table.launched >= table.horizon) & (made >= table.launched))
        lead, frame_seconds = table.deadline - now, self._frame_seconds(table.num_active)
        urgent = lead < urgent_lead(frame_seconds)
        long_enough = (pending >= self._chunk_frames(pending, lead, frame_seconds)) | urgent
        ready = np.flatnonzero(~table.decoding & (pending > 0) & (over | long_enough))
        return ready, urgent[ready]

    def _chunk_frames(self, pending: np.ndarray, lead: np.ndarray, frame_seconds: float) -> np.ndarray:
        """How long each slot's next chunk is to be, int [slots]: what is there, and what can be made in good time."""
        frames = pending + np.maximum(lead, 0.0) * LEAD_SHARE / max(frame_seconds, SHORTEST_FRAME)
        return _longest_within(np.clip(frames, 1, self._max_chunk_frames))

    def _lengths(self, slots: np.ndarray) -> np.ndarray:
        """All that is pending, as a chunk length: the last chunk is filled up to one, others leave a rest behind."""
        table = self._table.in_use
        pending = np.minimum(table.pending[slots], self._max_chunk_frames)
        return np.where(table.talking[slots], _longest_within(pending), _shortest_around(pending))

    def _gather(self, slots: np.ndarray, length: int) -> Chunks:
        table = self._table
        sent = table.sent[slots]
        counts = np.minimum(table.in_use.pending[slots], length)
        # A chunk that is filled up repeats its last frame: any valid code does.
        offsets = np.minimum(np.arange(length), counts[:, None] - 1)
        codes = table.codes[slots[:, None], sent[:, None] + offsets].astype(np.int32)
        streams = [stream for slot in slots if (stream := table.streams[slot])]
        ready_at = table.written_at[slots, sent + counts - 1]
        return Chunks(streams, slots, codes, table.preset[slots] + sent, counts, ready_at, sent == 0)


def _longest_within(frames: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = LENGTHS[np.searchsorted(LENGTHS, frames, side="right") - 1]
    return lengths


def _shortest_around(frames: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = LENGTHS[np.searchsorted(LENGTHS, frames)]
    return lengths
