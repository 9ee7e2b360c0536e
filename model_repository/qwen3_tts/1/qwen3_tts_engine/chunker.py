"""Which frames go to the codec next. No tensors, no threads."""

from dataclasses import dataclass

import numpy as np

from qwen3_tts_engine.code2wav import FRAME_SECONDS, MAX_BATCH
from qwen3_tts_engine.slots import SlotTable
from qwen3_tts_engine.stream import Stream


@dataclass(frozen=True)
class Chunks:
    """Chunks of one length, the most urgent first.

    `codes` is int32 [chunks, frames, codebooks], `history` int32 [chunks]: frames that the codec has had of each
    stream; `counts` int [chunks]: frames that hold speech; `ready_at` float [chunks]: when the last of them was made. A
    last chunk is filled up to the common length; the codec is causal, so what is filled in changes nothing before it.
    """

    streams: list[Stream]
    slots: np.ndarray
    codes: np.ndarray
    history: np.ndarray
    counts: np.ndarray
    ready_at: np.ndarray

    def __len__(self) -> int:
        return len(self.streams)


class Chunker:
    """The chunk ramp: 1, 2, 4, ... frames up to `max_chunk_frames`, so each chunk plays as long as all before it."""

    def __init__(self, table: SlotTable, max_chunk_frames: int) -> None:
        self._table = table
        self._max_chunk_frames = max_chunk_frames

    def next_chunks(self) -> Chunks | None:
        """The chunks that are ready and as long as the most urgent one; marks their slots as decoding."""
        table = self._table
        ready, lengths = self._ready()
        if not len(ready):
            return None
        order = np.argsort(table.deadline[ready], kind="stable")
        ready, lengths = ready[order], lengths[order]
        slots = ready[lengths == lengths[0]][:MAX_BATCH]
        table.decoding[slots] = True
        return self._gather(slots, int(lengths[0]))

    @property
    def has_chunks(self) -> bool:
        return len(self._ready()[0]) > 0

    def done(self, chunks: Chunks, now: float) -> list[Stream]:
        """The codec is through with `chunks`; returns the streams of which it was the last one."""
        table, slots = self._table, chunks.slots
        table.decoding[slots] = False
        first = table.sent[slots] == 0
        start = np.where(first, now, np.maximum(table.deadline[slots], now))
        table.deadline[slots] = start + chunks.counts * FRAME_SECONDS
        table.sent[slots] += chunks.counts
        drained = ~table.talking[slots] & (table.pending[slots] <= 0)
        return [chunks.streams[i] for i in np.flatnonzero(drained)]

    def _ready(self) -> tuple[np.ndarray, np.ndarray]:
        table = self._table
        pending = table.pending
        target = self.chunk_frames(table.sent)
        # What waits for text sends what it has: the listener has nothing else.
        over = ~table.talking | table.stalled
        ready = np.flatnonzero(~table.decoding & (pending > 0) & (over | (pending >= target)))
        exponent = np.log2(np.maximum(pending[ready], 1))
        # Only the last chunk of a stream may be filled up: what is filled in would become the next one's past.
        remainder = 1 << np.where(table.talking[ready], np.floor(exponent), np.ceil(exponent)).astype(np.int64)
        return ready, np.minimum(target[ready], remainder)

    def chunk_frames(self, sent: np.ndarray) -> np.ndarray:
        """Frames of the next chunk after `sent` frames, int [slots]."""
        ramp: np.ndarray = 1 << np.floor(np.log2(sent + 1)).astype(np.int64)
        return ramp.clip(max=self._max_chunk_frames)

    def _gather(self, slots: np.ndarray, length: int) -> Chunks:
        table = self._table
        sent = table.sent[slots]
        counts = np.minimum(table.pending[slots], length)
        # A chunk that is filled up repeats its last frame: any valid code does.
        offsets = np.minimum(np.arange(length), counts[:, None] - 1)
        codes = table.codes[slots[:, None], sent[:, None] + offsets].astype(np.int32)
        streams = [stream for slot in slots if (stream := table.streams[slot])]
        return Chunks(streams, slots, codes, sent, counts, table.written_at[slots, sent + counts - 1])
