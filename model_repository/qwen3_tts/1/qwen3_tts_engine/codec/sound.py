"""Withholds leading silence, and measures trailing silence, of decoded audio."""

from collections.abc import Sequence

import numpy as np

from qwen3_tts_engine.audio import SAMPLE_RATE, SAMPLES_PER_FRAME
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.core.streams import NO_SAMPLES, FinishReason, Stream
from qwen3_tts_engine.core.words import Pause

# The client's audible TTFA uses the same windows: 20 ms, every 10 ms, two in a row of at least -45 dBFS RMS.
BLOCK = SAMPLE_RATE // 100
BLOCK_ENERGY = BLOCK * 10 ** (-45 / 10) * 2**30
# Samples kept before the first audible window, and the most that are withheld.
KEPT, MAX_WITHHELD = SAMPLE_RATE // 50, SAMPLE_RATE // 2
# The first sample that is sent is the quietest one of the 5 ms before that, so that it does not click.
CUT = SAMPLE_RATE // 200
FADE = np.linspace(1, 0, CUT, dtype=np.float32)


def to_send(chunks: Chunks, pcm: np.ndarray) -> list[np.ndarray]:
    """What to send of each chunk's samples, int16 [chunks, samples]; nothing while a stream's beginning is withheld.

    A failed call has no samples, here and in `trailing_silence`.
    """
    # Samples without the padding of last chunks.
    rows = (row[: count * SAMPLES_PER_FRAME] for row, count in zip(pcm, chunks.counts, strict=True))
    return [
        _to_send(chunks.streams[number], chunks.last[number], row, chunks.pauses.get(number, ())) if len(row) else row
        for number, row in enumerate(rows)
    ]


def trailing_silence(chunks: Chunks, pcm: np.ndarray) -> np.ndarray:
    """Number of frames without an audible block at the end of each chunk, int [chunks]."""
    silent = np.zeros(len(pcm), np.int32)
    if not pcm.shape[1]:
        return silent
    # Most chunks end in speech, so only the last frame of each is always measured.
    frames = pcm.reshape(len(pcm), -1, SAMPLES_PER_FRAME)
    for row in np.flatnonzero(~_is_audible(frames[np.arange(len(pcm)), chunks.counts - 1])):
        before = frames[row, : chunks.counts[row] - 1]
        silent[row] = 1 + (_count_at_end(~_is_audible(before)) if len(before) else 0)
    return silent


def with_pauses(pcm: np.ndarray, pauses: Sequence[Pause]) -> np.ndarray:
    """int16 [samples] with silence before frames."""
    offsets = np.repeat([frame * SAMPLES_PER_FRAME for frame, _ in pauses], [samples for _, samples in pauses])
    return np.insert(pcm, offsets, 0)


def fade_out(pcm: np.ndarray) -> np.ndarray:
    """int16 [samples], the last 5 ms faded to zero."""
    faded = pcm.copy()
    tail = faded[-len(FADE) :]
    tail[:] = tail * FADE[len(FADE) - len(tail) :]
    return faded


def _to_send(stream: Stream, is_last: bool, pcm: np.ndarray, pauses: Sequence[Pause]) -> np.ndarray:
    if stream.is_withheld:
        # The pause before the first part comes with what is withheld.
        pauses = [pause for pause in pauses if pause.frame]
        pcm = np.concatenate([stream.begin(), pcm]) if pauses else _begin(stream, pcm)
    if pauses:
        pcm = with_pauses(pcm, pauses)
    return fade_out(pcm) if is_last and stream.reason is FinishReason.REPETITION else pcm


def _begin(stream: Stream, pcm: np.ndarray) -> np.ndarray:
    """The samples to send of a stream that has sent none."""
    stream.withheld = held = np.concatenate([stream.withheld, pcm])
    onset = find_onset(held)
    if onset is None and len(held) < MAX_WITHHELD:
        return NO_SAMPLES
    latest = MAX_WITHHELD if onset is None else min(onset - KEPT, MAX_WITHHELD)
    return stream.begin(_quietest(held, latest) if latest > 0 else 0)


def _quietest(pcm: np.ndarray, latest: int) -> int:
    """The quietest of the CUT samples up to `latest`."""
    first = max(0, latest - CUT)
    return first + int(np.abs(pcm[first : latest + 1].astype(np.int32)).argmin())


def find_onset(pcm: np.ndarray) -> int | None:
    """The first sample of the first of two audible windows in a row; None without any."""
    energies = _energies(pcm)
    # A window is two blocks; two windows in a row are three.
    loud = energies[:-1] + energies[1:] >= 2 * BLOCK_ENERGY
    onsets = np.flatnonzero(loud[:-1] & loud[1:])
    return int(onsets[0]) * BLOCK if len(onsets) else None


def _is_audible(frames: np.ndarray) -> np.ndarray:
    """Whether frames, int16 [frames, samples], have an audible block, bool [frames]."""
    audible: np.ndarray = _energies(frames).reshape(len(frames), -1).max(axis=1) >= BLOCK_ENERGY
    return audible


def _count_at_end(flags: np.ndarray) -> int:
    """Length of the run of True at the end."""
    others = np.flatnonzero(~flags)
    return len(flags) - 1 - int(others[-1]) if len(others) else len(flags)


def _energies(pcm: np.ndarray) -> np.ndarray:
    """Sum of squares of each block of int16 samples, whole frames, float32 [blocks]."""
    blocks = pcm.reshape(-1, BLOCK).astype(np.float32)
    energies: np.ndarray = np.einsum("ij,ij->i", blocks, blocks)
    return energies
