"""Holds an exported codec against the PyTorch step before anyone is served by it."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from export.codec import CodecStep
from qwen3_tts_engine.code2wav import MAX_FRAMES, max_history

Array = NDArray[Any]
# (codes int32 [B, T, 16], state fp32 [B, S], history int32 [B, 1]) -> (waveform fp32 [B, 1920 T], next state [B, S])
Step = Callable[[Array, Array, Array], tuple[Array, Array]]

# (batch, frames): every chunk length with two rows, and other batches at the first, a middle and the last length.
CASES = tuple((2, frames) for frames in range(1, MAX_FRAMES + 1))
CASES += tuple((batch, frames) for batch in (1, 7) for frames in (1, 4, MAX_FRAMES))
# Frames behind a row: cold, the window filling, just full, and long full.
AGES = (0, 1, 5, 40, 71, 80)
IRREGULAR_CHUNKS = (1, 1, 2, 3, 5, 8, 13, 21, 32, 4, 7, 31)
REGULAR_CHUNKS = (32, 32, 32, 32)
OUT_OF_RANGE = (-1, 5000)


@dataclass(frozen=True)
class Agreement:
    """The worst of what was compared: error of the waveform (full scale is 1), and signal to error of any tensor."""

    max_error: float = 0.0
    snr_db: float = math.inf

    def __str__(self) -> str:
        return f"max error {self.max_error:.1e}, SNR {self.snr_db:.1f} dB"

    def within(self, limit: "Agreement") -> bool:
        return self.max_error <= limit.max_error and self.snr_db >= limit.snr_db

    def worst(self, other: "Agreement") -> "Agreement":
        return Agreement(max(self.max_error, other.max_error), min(self.snr_db, other.snr_db))


@dataclass(frozen=True)
class Stream:
    """A stream between two chunks: state fp32 [S], and how many frames of it are valid."""

    state: Array
    history: int


class Verification:
    """Compares a candidate with the reference on `len(CASES) + 1` comparisons."""

    def __init__(self, reference: CodecStep, candidate: Step) -> None:
        self.config = reference.config
        self.reference, self.candidate = torch_step(reference), candidate
        self.cold = Stream(np.zeros(reference.state_size, np.float32), 0)
        self.random = np.random.default_rng(0)

    def run(self) -> Iterator[Agreement]:
        """Yields the agreement of each comparison.

        Batches mix cold and warm rows, and their last row holds codes out of range, which must not disturb the others.
        The last comparison is a whole utterance: the candidate's irregular chunks and the reference's regular ones.
        """
        streams = self._streams_of_all_ages()
        for batch, frames in CASES:
            inputs = self._batch([streams[(frames + row) % len(streams)] for row in range(batch)], frames)
            yield _compare_step(self.reference(*inputs), self.candidate(*inputs))
        codes = self._codes(sum(REGULAR_CHUNKS))
        expected, _ = self._decode(self.reference, self.cold, codes, REGULAR_CHUNKS)
        actual, _ = self._decode(self.candidate, self.cold, codes, IRREGULAR_CHUNKS)
        yield compare(expected, actual)

    def _streams_of_all_ages(self) -> list[Stream]:
        streams = [self.cold]
        for younger, older in pairwise(AGES):
            frames = older - younger
            _, stream = self._decode(self.reference, streams[-1], self._codes(frames), [1] * frames)
            streams.append(stream)
        return streams

    def _decode(self, step: Step, stream: Stream, codes: Array, chunks: Iterable[int]) -> tuple[Array, Stream]:
        """Decode codes [frames, 16] in chunks; returns the waveform and the stream after it."""
        waveforms, start = [], 0
        for frames in chunks:
            chunk = codes[None, start : start + frames]
            waveform, state = step(chunk, stream.state[None], np.array([[stream.history]], np.int32))
            waveforms.append(waveform[0])
            stream = Stream(state[0], min(stream.history + frames, max_history(self.config)))
            start += frames
        return np.concatenate(waveforms), stream

    def _batch(self, streams: list[Stream], frames: int) -> tuple[Array, Array, Array]:
        codes = np.stack([self._codes(frames) for _ in streams])
        codes[-1, -1, : len(OUT_OF_RANGE)] = OUT_OF_RANGE
        states = np.stack([stream.state for stream in streams])
        return codes, states, np.array([[stream.history] for stream in streams], np.int32)

    def _codes(self, frames: int) -> Array:
        return self.random.integers(0, self.config.codebook_size, (frames, self.config.num_quantizers), np.int32)


def torch_step(step: CodecStep) -> Step:
    """The PyTorch step on NumPy arrays."""

    def run(codes: Array, state: Array, history: Array) -> tuple[Array, Array]:
        with torch.inference_mode():
            waveform, state_out = step(*(torch.from_numpy(array) for array in (codes, state, history)))
        return waveform.numpy(), state_out.numpy()

    return run


def compare(expected: Array, actual: Array) -> Agreement:
    """Any difference of shape, and anything not finite, is no agreement at all."""
    if expected.shape != actual.shape or not np.isfinite(actual).all():
        return Agreement(math.inf, -math.inf)
    error = expected.astype(np.float64) - actual
    signal, noise = (float(np.square(x, dtype=np.float64).sum()) for x in (expected, error))
    return Agreement(float(np.abs(error).max()), 10 * math.log10(signal / noise) if noise else math.inf)


def _compare_step(expected: tuple[Array, Array], actual: tuple[Array, Array]) -> Agreement:
    waveform, state = (compare(right, found) for right, found in zip(expected, actual, strict=True))
    # The state is no sound: its error says something only relative to its size.
    return waveform.worst(Agreement(snr_db=state.snr_db))
