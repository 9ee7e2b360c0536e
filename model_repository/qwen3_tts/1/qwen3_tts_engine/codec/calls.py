"""The calls of a codec proof: their shapes, and golden utterances in the talker's slots."""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qwen3_tts_engine.audio import NUM_CODEBOOKS, SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.contract import MAX_BATCH, MAX_CALL_FRAMES
from qwen3_tts_engine.codec.golden import Golden
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.core.streams import Stream, Summary, no_prompt
from qwen3_tts_engine.request import RequestError, Sampling

# Batch sizes, the most revealing first.
ROWS = (8, 3, MAX_BATCH, 6, 33, 2, 16, 4)
# Other sizes that code2wav_step captures graphs for.
MORE_ROWS = (5, 7, 10, 12, 14, 20, 24, 28, 32, 40, 48, 56)
SEED = 0


class _NoSink:
    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None: ...

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None: ...


GREEDY = Sampling(
    temperature=0, top_k=0, top_p=1, repetition_penalty=1,
    predictor_temperature=0, predictor_top_k=0, predictor_top_p=1, seed=0,
)  # fmt: skip
# A stream without a voice.
_STREAM = Stream("codec proof", no_prompt(NUM_CODEBOOKS), GREEDY, 1, _NoSink())


@dataclass(frozen=True)
class ProofCall:
    """A codec call; the rows of a `cold` one begin utterances, so that some rows are equal."""

    rows: int
    frames: int
    cold: bool = False

    def __str__(self) -> str:
        return f"{self.rows}x{self.frames}"

    @property
    def size(self) -> int:
        return self.rows * self.frames


def plan_calls(lengths: Sequence[int], num_slots: int) -> list[ProofCall]:
    """All calls, the most revealing first; the first `len(lengths)` have one row and each chunk length."""
    alone = [ProofCall(1, frames) for frames in lengths]
    batches = list(_batches(ROWS, lengths, num_slots))
    warm, more = [*alone, *batches], [call for call in _batches(MORE_ROWS, lengths, num_slots) if call not in batches]
    order = random.Random(SEED)
    order.shuffle(warm)
    order.shuffle(more)
    return [*alone, *(replace(call, cold=True) for call in batches), *warm, *more]


def _batches(sizes: Iterable[int], lengths: Sequence[int], num_slots: int) -> Iterable[ProofCall]:
    max_rows = min(num_slots, MAX_BATCH)
    calls = (ProofCall(min(size, max_rows, MAX_CALL_FRAMES // frames), frames) for size in sizes for frames in lengths)
    return dict.fromkeys(call for call in calls if call.rows > 1)


class Utterances:
    """The golden utterance of each slot and the codec's position in it."""

    def __init__(self, golden: Golden, num_slots: int) -> None:
        self._golden = golden
        self._loudness = np.square(golden.pcm, dtype=np.float64).mean(axis=1)
        self._utterance = np.arange(num_slots) % len(golden.codes)
        self._position = np.zeros(num_slots, np.int64)
        self._random = np.random.default_rng(SEED)

    def choose(self, call: ProofCall) -> np.ndarray:
        """Slots for a call's rows; restarts those of a cold call and those with too few frames left."""
        count = len(self._position)
        in_order = call.cold or call.rows == 1
        slots = np.arange(call.rows) if in_order else self._random.permutation(count)[: call.rows]
        exhausted = self._position[slots] + call.frames > self._golden.codes.shape[1]
        self.restart(slots[exhausted | call.cold])
        return slots

    def chunks(self, slots: np.ndarray, frames: int) -> Chunks:
        utterance, position = self._utterance[slots], self._position[slots]
        codes = self._golden.codes[utterance[:, None], position[:, None] + np.arange(frames)]
        counts, times = np.full(len(slots), frames), np.zeros(len(slots))
        history, streams = position.astype(np.int32), [_STREAM] * len(slots)
        return Chunks(streams, slots, codes, history, counts, times, position == 0, np.zeros(len(slots), bool))

    def expected(self, slots: np.ndarray, frames: int) -> np.ndarray:
        """Golden samples, int16 [rows, samples]."""
        first = self._position[slots, None] * SAMPLES_PER_FRAME
        pcm: np.ndarray = self._golden.pcm[self._utterance[slots, None], first + np.arange(frames * SAMPLES_PER_FRAME)]
        return pcm

    def loudness(self, slots: np.ndarray) -> np.ndarray:
        """Mean square of each row's whole utterance, so that quiet chunks are not held to a stricter limit."""
        loudness: np.ndarray = self._loudness[self._utterance[slots]]
        return loudness

    def twins(self, slots: np.ndarray) -> np.ndarray:
        """For each row that begins an utterance, the first row that begins the same one; for others, the row itself.

        Only such rows have bit-identical inputs; the states of others may have rounded differently.
        """
        rows = np.arange(len(slots))
        begun = rows[self._position[slots] == 0]
        same = rows.copy()
        first: dict[int, int] = {}
        for row in begun:
            same[row] = first.setdefault(int(self._utterance[slots[row]]), int(row))
        return same

    def advance(self, slots: np.ndarray, frames: int) -> None:
        self._position[slots] += frames

    def restart(self, slots: np.ndarray) -> None:
        """Begin another utterance, so that stale samples differ from the expected ones."""
        self._utterance[slots] = (self._utterance[slots] + 1) % len(self._golden.codes)
        self._position[slots] = 0
