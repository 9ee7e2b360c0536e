"""Compares an exported codec with the PyTorch step, in every shape that can be served."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import cycle
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from export.agreement import PARTS, Agreement, compare_step, compare_utterance
from export.modules.codec import CodecStep
from export.reference import Reference, RowPool
from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, MAX_FRAMES, split_frames

# (codes int32 [B, T, 16], state fp32 [B, S], history int32 [B, 1]) -> (waveform fp32 [B, 1920 T], next state [B, S]) on
# any devices; the caller owns the results.
StepFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

Candidate = Any
"""What a form's `load` returns and its verification calls."""


class Verifier(Protocol):
    """Comparisons of a candidate; their number, and what they cover as text."""

    def run(self) -> Iterator["Outcome"]: ...

    def __len__(self) -> int: ...


ALL_BATCHES = tuple(range(1, MAX_BATCH + 1))
# If all take too long: the smallest, and both sides of powers of two, where kernels change.
SOME_BATCHES = (1, 2, 3, 7, 8, 33, MAX_BATCH)
AFFORDABLE_SECONDS = 10.0
# Rows and frames of the call timed to decide that.
TIMED = (8, 4)
# Batches of a single row, repeated.
UNIFORM = (2, 8, MAX_BATCH)
# Repeated until the end of the utterance.
IRREGULAR_CHUNKS = (1, 1, 2, 4, 1, 8, 16, 2, 16, 1, 4, 8)
REGULAR_CHUNKS = (CHUNK_FRAMES[-1],)
# Frames: 10 s and 61 s.
SHORT_UTTERANCE, LONG_UTTERANCE = 128, 768
NAMED_FAILURES = 10


@dataclass(frozen=True)
class Case:
    """A batch to verify, of which `distinct` rows differ."""

    rows: int
    frames: int
    distinct: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.frames}{' of one row' if self.distinct < min(self.rows, 2) else ''}"


@dataclass(frozen=True)
class Outcome:
    """Result of one comparison; `name` is rows x frames, or an utterance."""

    name: str
    agreement: Agreement


class Verification:
    """Compares a candidate with the reference: `batches` of every chunk length, and an utterance of that many frames.

    `batches` defaults to all on a GPU, and on a CPU to some if all take too long. `most_frames` bounds a batch's rows
    times frames.
    """

    def __init__(
        self,
        step: CodecStep,
        candidate: StepFunction,
        batches: Sequence[int] | None = None,
        utterance: int = SHORT_UTTERANCE,
        seed: int = 0,
        most_frames: int = MAX_BATCH * MAX_FRAMES,
    ) -> None:
        self.reference, self.candidate, self.utterance = Reference(step), candidate, utterance
        self.batches = tuple(batches or self._affordable_batches())
        self.cases = [case for case in cases(self.batches) if case.rows * case.frames <= most_frames]
        self._random = np.random.default_rng(seed)

    def run(self) -> Iterator[Outcome]:
        """Yields the outcome of each comparison; there are `len(self)`.

        Batches mix cold and warm rows in random order, so that no shape can reuse the output of its last run. The last
        comparison is a whole utterance: irregular chunks by the candidate, regular ones by the reference.
        """
        sizes = dict[int, int]()
        for case in self.cases:
            sizes[case.frames] = max(case.rows, sizes.get(case.frames, 0))
        pool = RowPool(self.reference, sizes, self._random)
        for i in self._random.permutation(len(self.cases)):
            yield Outcome(str(self.cases[i]), self._compare(self.cases[i], pool))
        # All parts say the same: only what has added up tells them apart, not how loud some codes are.
        codes = pool.codes(1, self.utterance // PARTS).repeat(1, PARTS, 1)
        expected = self._decode(self.reference, codes, REGULAR_CHUNKS)
        actual = self._decode(self.candidate, codes, IRREGULAR_CHUNKS)
        yield Outcome(f"utterance of {self.utterance} frames", compare_utterance(expected, actual))

    def __len__(self) -> int:
        return len(self.cases) + 1

    def __str__(self) -> str:
        return describe(self.batches, len({(case.rows, case.frames) for case in self.cases}), self.utterance)

    def _compare(self, case: Case, pool: RowPool) -> Agreement:
        """Compares each row with the reference's, and equal rows with each other."""
        indices = pool.draw(case.frames, case.rows, case.distinct)
        batch = pool.batch(case.frames, indices)
        actual = self.candidate(*batch.inputs)
        agreement = compare_step(batch.outputs, actual)
        first, repeated = equal_rows(indices)
        if agreement.snr_db == -math.inf or not len(repeated):
            return agreement
        waveform, state = actual
        return agreement.worst(compare_step((waveform[first], state[first]), (waveform[repeated], state[repeated])))

    def _decode(self, step: StepFunction, codes: Tensor, chunks: Sequence[int]) -> Tensor:
        """The waveform [1, samples] of codes [1, frames, 16] from a cold start, cycling through these chunk lengths."""
        waveforms, start, state = [], 0, self.reference.cold(1)
        for frames in cycled_chunks(codes.shape[1], chunks):
            inputs = codes[:, start : start + frames], state, self.reference.history(1, start)
            waveform, state = step(*inputs)
            waveforms.append(waveform.to(codes.device))
            start += frames
        return torch.cat(waveforms, dim=1)

    def _affordable_batches(self) -> tuple[int, ...]:
        (rows, frames), device = TIMED, self.reference.device
        codes = torch.zeros(rows, frames, self.reference.config.num_quantizers, dtype=torch.int32, device=device)
        times = []
        for _ in range(3):
            started = time.perf_counter()
            waveform, _ = self.candidate(codes, self.reference.cold(rows), self.reference.history(rows, 0))
            waveform.sum().item()  # waits for the device
            times.append(time.perf_counter() - started)
        return ALL_BATCHES if waveform.is_cuda else affordable_batches(min(times) / (rows * frames))


def affordable_batches(seconds_per_frame: float) -> tuple[int, ...]:
    """All, unless that exceeds AFFORDABLE_SECONDS at this time per frame and row."""
    seconds = seconds_per_frame * sum(ALL_BATCHES) * sum(CHUNK_FRAMES)
    return ALL_BATCHES if seconds <= AFFORDABLE_SECONDS else SOME_BATCHES


def cases(batches: Sequence[int]) -> list[Case]:
    """Every chunk length at each batch size, with repeated rows from four rows on, and batches of one repeated row."""
    distinct = [(rows, rows - rows // 4) for rows in batches] + [(rows, 1) for rows in UNIFORM if rows in batches]
    return [Case(rows, frames, count) for frames in CHUNK_FRAMES for rows, count in distinct]


def cycled_chunks(frames: int, longest: Sequence[int]) -> Iterator[int]:
    """Chunk lengths that add up to `frames`: these in turn, each shortened to what is left."""
    done = 0
    for limit in cycle(longest):
        if done == frames:
            return
        _, length = next(split_frames(frames - done, limit))
        yield length
        done += length


def equal_rows(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions in a batch of these indices: the first of an equal row, and each repetition."""
    _, first, inverse = np.unique(indices, return_index=True, return_inverse=True)
    repeated = np.flatnonzero(first[inverse] != np.arange(len(indices)))
    return first[inverse][repeated], repeated


def describe(batches: Sequence[int], num_shapes: int, utterance: int) -> str:
    """What was verified: batch sizes, shapes, and an utterance of that many frames."""
    first, last = batches[0], batches[-1]
    every = f"{first} to {last}" if tuple(batches) == tuple(range(first, last + 1)) else _joined(batches)
    return (
        f"{num_shapes} shapes (batches {every} x {_joined(CHUNK_FRAMES)} frames) "
        f"and an utterance of {utterance * FRAME_SECONDS:.0f} s"
    )


def worst(outcomes: Sequence[Outcome]) -> Agreement:
    return reduce(Agreement.worst, (outcome.agreement for outcome in outcomes))


def failures(outcomes: Sequence[Outcome], limit: Agreement) -> str:
    """The comparisons outside the limit, the worst first; empty if there are none."""
    failed = [outcome for outcome in outcomes if not outcome.agreement.within(limit)]
    failed.sort(key=lambda outcome: outcome.agreement.snr_db)
    named = [f"{outcome.name}: {outcome.agreement.snr_db:.1f} dB" for outcome in failed[:NAMED_FAILURES]]
    more = f" and {len(failed) - NAMED_FAILURES} more" if len(failed) > NAMED_FAILURES else ""
    return ", ".join(named) + more


def _joined(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
