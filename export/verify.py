"""Holds an exported codec against the PyTorch step before anyone is served by it."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from export.codec import CodecStep
from qwen3_tts_engine.code2wav import MAX_BATCH, MAX_FRAMES, max_history

Array = NDArray[Any]
# (codes int32 [B, T, 16], state fp32 [B, S], history int32 [B, 1]) -> (waveform fp32 [B, 1920 T], next state [B, S])
Step = Callable[[Array, Array, Array], tuple[Array, Array]]

Cases = tuple[tuple[int, int], ...]

# (batch, frames): every chunk length with two rows, and other batches at the first, a middle and the last length.
CASES: Cases = tuple((2, frames) for frames in range(1, MAX_FRAMES + 1))
CASES += tuple((batch, frames) for batch in (1, 7) for frames in (1, 4, MAX_FRAMES))
CASES += ((MAX_BATCH, 1),)
# Frames behind a row: cold, the window filling, just full, and long full.
AGES = (0, 1, 5, 40, 71, 80)
# Repeated until an utterance is over.
IRREGULAR_CHUNKS = (1, 1, 2, 3, 5, 8, 13, 21, 32, 4, 7, 31)
REGULAR_CHUNKS = (MAX_FRAMES,)
# Frames: 10 s and 60 s.
SHORT_UTTERANCE, LONG_UTTERANCE = 128, 768
# Parts of an utterance whose errors are compared: the first and the last.
PARTS = 4
MAX_DRIFT_DB = 3.0
OUT_OF_RANGE = (-1, 5000)


@dataclass(frozen=True)
class Agreement:
    """The worst of what was compared: error of the waveform (full scale is 1), signal to error of any tensor, and by
    how much that falls from the first to the last part of an utterance."""

    max_error: float = 0.0
    snr_db: float = math.inf
    drift_db: float = 0.0

    def __str__(self) -> str:
        return f"max error {self.max_error:.1e}, SNR {self.snr_db:.1f} dB, drift {self.drift_db:.1f} dB"

    @property
    def bounds(self) -> str:
        """What a limit allows."""
        drift = self.drift_db or MAX_DRIFT_DB
        return f"max error up to {self.max_error:.1e}, SNR from {self.snr_db:.1f} dB, drift up to {drift:.1f} dB"

    def within(self, limit: "Agreement") -> bool:
        """A limit that names no drift allows MAX_DRIFT_DB."""
        close = self.max_error <= limit.max_error and self.snr_db >= limit.snr_db
        return close and self.drift_db <= (limit.drift_db or MAX_DRIFT_DB)

    def worst(self, other: "Agreement") -> "Agreement":
        error, drift = max(self.max_error, other.max_error), max(self.drift_db, other.drift_db)
        return Agreement(error, min(self.snr_db, other.snr_db), drift)


@dataclass(frozen=True)
class Stream:
    """A stream between two chunks: state fp32 [S], and how many frames of it are valid."""

    state: Array
    history: int


class Verification:
    """Compares a candidate with the reference: `cases` of (batch, frames), and an utterance of so many frames."""

    def __init__(
        self, reference: CodecStep, candidate: Step, cases: Cases = CASES, utterance: int = SHORT_UTTERANCE
    ) -> None:
        self.config = reference.config
        self.reference, self.candidate = torch_step(reference), candidate
        self.cases, self.utterance = cases, utterance
        self.cold = Stream(np.zeros(reference.state_size, np.float32), 0)
        self.random = np.random.default_rng(0)

    def run(self) -> Iterator[Agreement]:
        """Yields the agreement of each comparison; there are `len(self)`.

        Batches mix cold and warm rows, and their last row holds codes out of range, which must not disturb the others.
        The last comparison is a whole utterance: the candidate's irregular chunks and the reference's regular ones.
        """
        streams = self._streams_of_all_ages()
        for batch, frames in self.cases:
            inputs = self._batch([streams[(frames + row) % len(streams)] for row in range(batch)], frames)
            yield _compare_step(self.reference(*inputs), self.candidate(*inputs))
        codes = self._codes(self.utterance)
        expected, _ = self._decode(self.reference, self.cold, codes, REGULAR_CHUNKS)
        actual, _ = self._decode(self.candidate, self.cold, codes, IRREGULAR_CHUNKS)
        yield compare_utterance(expected, actual)

    def __len__(self) -> int:
        return len(self.cases) + 1

    def _streams_of_all_ages(self) -> list[Stream]:
        streams = [self.cold]
        for younger, older in pairwise(AGES):
            frames = older - younger
            _, stream = self._decode(self.reference, streams[-1], self._codes(frames), [1])
            streams.append(stream)
        return streams

    def _decode(self, step: Step, stream: Stream, codes: Array, chunks: Iterable[int]) -> tuple[Array, Stream]:
        """Decode codes [frames, 16] in chunks of these lengths in turn; returns waveform and stream after it."""
        waveforms, start = [], 0
        for frames in cycle(chunks):
            chunk = codes[None, start : start + frames]
            waveform, state = step(chunk, stream.state[None], np.array([[stream.history]], np.int32))
            waveforms.append(waveform[0])
            start += chunk.shape[1]
            stream = Stream(state[0], min(stream.history + chunk.shape[1], max_history(self.config)))
            if start == len(codes):
                break
        return np.concatenate(waveforms), stream

    def _batch(self, streams: list[Stream], frames: int) -> tuple[Array, Array, Array]:
        codes = np.stack([self._codes(frames) for _ in streams])
        codes[-1, -1, : len(OUT_OF_RANGE)] = OUT_OF_RANGE
        states = np.stack([stream.state for stream in streams])
        return codes, states, np.array([[stream.history] for stream in streams], np.int32)

    def _codes(self, frames: int) -> Array:
        return self.random.integers(0, self.config.codebook_size, (frames, self.config.num_quantizers), np.int32)


def torch_step(step: CodecStep) -> Step:
    """The PyTorch step on NumPy arrays, in FP32 and nothing less, on a GPU where there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    step = copy.deepcopy(step).to(device) if device.type == "cuda" else step
    torch.backends.cudnn.allow_tf32 = False

    def run(codes: Array, state: Array, history: Array) -> tuple[Array, Array]:
        with torch.inference_mode():
            waveform, state_out = step(*(torch.from_numpy(array).to(device) for array in (codes, state, history)))
        return waveform.cpu().numpy(), state_out.cpu().numpy()

    return run


def compare(expected: Array, actual: Array) -> Agreement:
    """Any difference of shape, and anything not finite, is no agreement at all."""
    if expected.shape != actual.shape or not np.isfinite(actual).all():
        return Agreement(math.inf, -math.inf)
    error = expected.astype(np.float64) - actual
    signal, noise = (float(np.square(x, dtype=np.float64).sum()) for x in (expected, error))
    return Agreement(float(np.abs(error).max()), 10 * math.log10(signal / noise) if noise else math.inf)


def compare_utterance(expected: Array, actual: Array) -> Agreement:
    """The whole, and whether the last part is worse than the first."""
    whole = compare(expected, actual)
    if not math.isfinite(whole.snr_db):
        return whole
    size = len(expected) // PARTS
    first, last = compare(expected[:size], actual[:size]), compare(expected[-size:], actual[-size:])
    return replace(whole, drift_db=first.snr_db - last.snr_db)


def _compare_step(expected: tuple[Array, Array], actual: tuple[Array, Array]) -> Agreement:
    waveform, state = (compare(right, found) for right, found in zip(expected, actual, strict=True))
    # The state is no sound: its error says something only relative to its size.
    return waveform.worst(Agreement(snr_db=state.snr_db))
