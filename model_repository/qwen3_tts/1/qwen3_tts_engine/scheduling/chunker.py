"""Selects the frames of the next codec call. No tensors, no threads."""

import math
from collections.abc import Callable
from enum import Enum

import numpy as np

from qwen3_tts_engine.audio import SAMPLE_RATE
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, MAX_CALL_FRAMES
from qwen3_tts_engine.core.batches import Audio, Chunks
from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.scheduling.capacity import urgent_lead
from qwen3_tts_engine.scheduling.slot_table import SlotTable

# Share of the listener's lead that may be spent waiting for more frames; the rest is for the codec and for jitter. With
# 0.5 eight streams on two CPU cores stalled occasionally; with 0.3 they did not, and received their audio sooner.
LEAD_SHARE = 0.3
LENGTHS = np.array(CHUNK_FRAMES)
# Avoids a division by zero before the first measurement.
MIN_FRAME_SECONDS = 1e-6
# Share of the talking streams at which a call is worth its fixed cost, 2 ms through Triton.
WORTHWHILE_SHARE = 0.5


class Need(Enum):
    """Minimum reason for a codec call: any chunk; an urgent chunk or enough chunks; only an urgent chunk.

    Urgent means first audio, or a listener about to underrun.
    """

    ANY = 0
    WORTHWHILE = 1
    URGENT = 2

    @classmethod
    def between_ticks(cls, talker_has_work: bool, last_was_call: bool) -> "Need":
        """The need of a call that delays the next tick; consecutive calls must be urgent."""
        if not talker_has_work:
            return cls.ANY
        return cls.URGENT if last_was_call else cls.WORTHWHILE


class Chunker:
    """Forms chunks of CHUNK_FRAMES lengths: one frame for the first audio, then as many as the listener's lead allows.

    The only place that decides chunk lengths. Longer chunks cost the codec less, but the listener's buffer drains until
    they are decoded.
    """

    def __init__(
        self,
        table: SlotTable,
        max_chunk_frames: int,
        frame_seconds: Callable[[int], float],
        call_frames: Callable[[int, float], int] | None = None,
    ) -> None:
        """`frame_seconds` predicts the work of one frame of each of a number of streams; `call_frames` bounds rows
        times frames of a call while there are so many, and the most urgent listener has so many seconds of audio."""
        self._table = table
        self._max_chunk_frames, self._call_frames = max_chunk_frames, call_frames
        self._frame_seconds = frame_seconds
        self._takes_most = False

    def next_chunks(self, now: float, need: Need = Need.ANY) -> Chunks | None:
        """Ready chunks of one length: the shortest urgent one, else the most common one; marks them as decoding.

        None when no call satisfies `need`.
        """
        table = self._table.in_use
        most, longest = self._bounds(now)
        ready, urgent = self._ready(now, longest)
        if not self._is_due(urgent, need):
            return None
        if len(ready) == 1:
            return self._take(ready, int(self._lengths(ready, longest)[0]))
        order = np.argsort(table.deadline[ready], kind="stable")
        ready, urgent = ready[order], urgent[order]
        lengths, last = self._lengths(ready, longest), ~table.talking[ready]

        def fits(length: int) -> np.ndarray:
            # A last chunk is padded to a longer length, an urgent one truncated to a shorter one, so that neither waits
            # for a call of its own.
            rows: np.ndarray = (lengths == length) | (last & (lengths < length)) | (urgent & (lengths > length))
            return rows

        # With more urgent chunks than a call holds, every second call decodes the most frames of the most urgent ones.
        # While newcomers keep coming, all calls would have one frame, which costs most: 1 000 callers within a second
        # stalled for up to 180 ms (one H100).
        self._takes_most = urgent.sum() > MAX_BATCH and not self._takes_most
        if self._takes_most:
            first = lengths[:MAX_BATCH]
            length = max(set(first.tolist()), key=lambda length: length * (first >= length).sum())
        elif urgent[0]:
            length = int(lengths[urgent].min())
        else:
            length = max(set(lengths.tolist()), key=lambda length: (fits(length).sum(), length))
        return self._take(ready[fits(length)][: min(MAX_BATCH, max(1, most // length))], length)

    def will_be_due(self, now: float) -> bool:
        """Whether a call is worthwhile once the launched frames are generated."""
        _, longest = self._bounds(now)
        _, urgent = self._ready(now, longest, in_flight=True)
        return self._is_due(urgent, Need.WORTHWHILE)

    def _is_due(self, urgent: np.ndarray, need: Need) -> bool:
        """Whether ready chunks, of which `urgent` bool [ready] are urgent, satisfy `need`."""
        if need is Need.ANY or not len(urgent) or urgent.any():
            return len(urgent) > 0
        enough = min(MAX_BATCH, self._table.in_use.num_active * WORTHWHILE_SHARE)
        return need is Need.WORTHWHILE and len(urgent) >= enough

    def done(self, chunks: Chunks, audio: Audio, now: float) -> list[Stream]:
        """Mark `chunks` as decoded into `audio`; returns the streams for which this was the last one."""
        table, slots = self._table.in_use, chunks.slots
        table.decoding[slots] = False
        table.decoded[slots] += chunks.counts
        # The listener's clock starts with the first sample that is sent.
        samples = audio.num_samples
        has_audio = samples > 0
        underrun_at = np.maximum(table.deadline[slots], now) + samples / SAMPLE_RATE
        table.deadline[slots] = np.where(has_audio, underrun_at, table.deadline[slots])
        table.started[slots] |= has_audio
        is_silent = audio.silent_frames == chunks.counts
        table.audible[slots] |= ~is_silent
        table.silent[slots] = np.where(is_silent, table.silent[slots], 0) + audio.silent_frames
        drained = ~table.talking[slots] & (table.pending[slots] <= 0)
        return [chunks.streams[i] for i in np.flatnonzero(drained)]

    def _bounds(self, now: float) -> tuple[int, int]:
        """The most rows times frames of the next call, and frames of a chunk."""
        most, table = MAX_CALL_FRAMES, self._table.in_use
        if self._call_frames:
            waiting = table.started & table.talking & ~table.decoding & (table.pending > 0)
            lead = float(np.min(table.deadline[waiting] - now, initial=math.inf))
            most = self._call_frames(table.num_active, lead)
        return most, max(length for length in CHUNK_FRAMES if length <= min(most, self._max_chunk_frames))

    def _ready(self, now: float, longest: int, *, in_flight: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Slots with a chunk to send, of `longest` frames at most, int [ready], and which are urgent, bool [ready]."""
        table = self._table.in_use
        frames = np.where(in_flight & table.talking, table.launched, table.written)
        pending = frames - table.decoded
        # Streams that ended or wait for text send what they have.
        flush = ~table.talking | ((table.launched >= table.text_limit) & (frames >= table.launched))
        lead, frame_seconds = table.deadline - now, self._frame_seconds(table.num_active)
        urgent = lead < urgent_lead(frame_seconds)
        long_enough = (pending >= self._chunk_frames(pending, lead, frame_seconds, longest)) | urgent
        ready = np.flatnonzero(~table.decoding & (pending > 0) & (flush | long_enough))
        return ready, urgent[ready]

    def _chunk_frames(self, pending: np.ndarray, lead: np.ndarray, frame_seconds: float, longest: int) -> np.ndarray:
        """Target length of each slot's next chunk, int [slots]: pending frames plus those that the lead allows."""
        frames = pending + np.maximum(lead, 0.0) * LEAD_SHARE / max(frame_seconds, MIN_FRAME_SECONDS)
        return _round_down(np.clip(frames, 1, longest))

    def _lengths(self, slots: np.ndarray, longest: int) -> np.ndarray:
        """Pending frames as chunk lengths: rounded up for the last chunk of a stream, otherwise down."""
        table = self._table.in_use
        pending = np.minimum(table.pending[slots], longest)
        return np.where(table.talking[slots], _round_down(pending), _round_up(pending))

    def _take(self, slots: np.ndarray, length: int) -> Chunks:
        """Chunks of slots, which are decoding from now on."""
        table = self._table
        table.decoding[slots] = True
        decoded = table.decoded[slots]
        pending = table.in_use.pending[slots]
        counts = np.minimum(pending, length)
        # Padding repeats the last frame; any valid code will do.
        offsets = np.minimum(np.arange(length), counts[:, None] - 1)
        codes = table.codes[slots[:, None], decoded[:, None] + offsets].astype(np.int32)
        streams = [stream for slot in slots if (stream := table.streams[slot])]
        ends = decoded + counts
        words = {row: one.words.take(int(ends[row])) for row, one in enumerate(streams) if one.words}
        history, ready_at = table.reference_frames[slots] + decoded, table.written_at[slots, ends - 1]
        last = ~table.talking[slots] & (counts == pending)
        pauses = {
            row: one.pauses_in(int(decoded[row]), int(ends[row])) for row, one in enumerate(streams) if one.pauses
        }
        return Chunks(streams, slots, codes, history, counts, ready_at, decoded == 0, last, words, pauses)


def _round_down(frames: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = LENGTHS[np.searchsorted(LENGTHS, frames, side="right") - 1]
    return lengths


def _round_up(frames: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = LENGTHS[np.searchsorted(LENGTHS, frames)]
    return lengths
