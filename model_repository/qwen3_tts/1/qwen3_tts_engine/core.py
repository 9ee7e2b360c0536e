"""Data types that the engine's packages exchange: streams, batches, frames, chunks."""

import time
from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

import numpy as np

from qwen3_tts_engine.request import RequestError, Sampling
from qwen3_tts_engine.voice import Voice

NONE = -1
MAX_SEED = 1 << 63


@dataclass(eq=False)
class Prompt:
    """A part of an utterance: rows to prefill and the text that follows them.

    Row i is the projected embedding of `text_ids[i]` plus the sum over j of the embedding of codebook j for
    `code_ids[i, j]`; NONE adds nothing. `text_ids` is int32 [rows], `code_ids` int32 [rows, codebooks]. After frame t
    the talker is fed `trailing[t]`, and the pad token after the last one. `num_spoken` counts the spoken tokens.
    A cloned voice adds `vector`, float32 [H], to row `vector_row`.

    While `is_open`, more ids follow and no pad is fed in their place. New ids enter `arrived`; `complete` marks them as
    the last. Only the scheduler moves them to `trailing`, so that the runner never reads changing data.
    """

    text_ids: np.ndarray
    code_ids: np.ndarray
    trailing: list[int]
    num_spoken: int
    vector: np.ndarray | None = None
    vector_row: int = NONE
    max_frames: int | None = None
    """Frame cap of this part; None means that of the stream."""
    is_open: bool = False
    arrived: list[int] = field(default_factory=list)
    complete: bool = False

    def __len__(self) -> int:
        return len(self.text_ids)

    def take_arrived(self) -> list[int]:
        """Move `arrived` to `trailing`; returns the moved ids."""
        taken, self.arrived = self.arrived, []
        self.trailing += taken
        self.is_open = self.is_open and not self.complete
        return taken


def no_prompt(num_codebooks: int) -> Prompt:
    """The prompt of a stream that still waits for its first text."""
    return Prompt(np.zeros(0, np.int32), np.zeros((0, num_codebooks), np.int32), [], 0)


class Sink(Protocol):
    """Receives a stream's audio. Called from several threads; calls after `finish` are ignored."""

    def send(self, pcm: np.ndarray) -> None:
        """Deliver int16 [samples] of 24 kHz audio."""

    def finish(self, error: RequestError | None) -> None:
        """End the stream; None means success."""


class Status(Enum):
    """Stages of a stream. It holds a slot from RUNNING to DRAINING, and cache pages while RUNNING."""

    NEW = "new"
    HOLDING = "holding for text"
    """Waits for its first text."""
    WAITING = "waiting for a slot"
    RUNNING = "running"
    PARKED = "parked"
    """Waits for pages; then its prompt and its frames are prefilled again."""
    RESTING = "resting between parts"
    """Waits for the text of its next part."""
    DRAINING = "draining"
    """All frames are generated, some are not decoded."""
    ENDED = "ended"


TRANSITIONS = {
    Status.NEW: {Status.HOLDING, Status.WAITING},
    Status.HOLDING: {Status.WAITING, Status.ENDED},
    Status.WAITING: {Status.RUNNING, Status.ENDED},
    Status.RUNNING: {Status.PARKED, Status.RESTING, Status.DRAINING, Status.ENDED},
    Status.PARKED: {Status.RUNNING, Status.ENDED},
    Status.RESTING: {Status.PARKED, Status.DRAINING, Status.ENDED},
    Status.DRAINING: {Status.ENDED},
    Status.ENDED: set(),
}


@dataclass(eq=False)
class Stream:
    """One utterance in flight. Times are perf_counter seconds.

    `prompt` is the current part, `following` are the next ones; while `is_open`, more text may arrive. The talker
    handles each part like a separate utterance; the codec's state continues across parts.
    """

    key: str
    prompt: Prompt
    sampling: Sampling
    max_frames: int
    sink: Sink
    voice: Voice | None = None
    status: Status = Status.NEW
    arrived: float = field(default_factory=time.perf_counter)
    admitted: float = 0.0
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    following: deque[Prompt] = field(default_factory=deque)
    is_open: bool = False
    part: int = 0
    """Index of the current part."""
    reserved_frames: int = 0
    """Frame cap of a part whose text has not arrived; no pages are reserved for it."""

    @property
    def num_positions(self) -> int:
        """Maximum number of key/value positions of the stream."""
        parts = max(len(prompt) + self.part_frames(prompt) for prompt in (self.prompt, *self.following))
        return max(parts, len(self.prompt) + self.reserved_frames)

    @property
    def seed(self) -> int:
        """The seed of the current part; differs between parts, so that they do not share random numbers."""
        return (self.sampling.seed + self.part) % MAX_SEED

    def part_frames(self, prompt: Prompt) -> int:
        """Frame cap of a part."""
        return self.max_frames if prompt.max_frames is None else min(prompt.max_frames, self.max_frames)

    def next_part(self) -> None:
        self.prompt = self.following.popleft()
        self.part += 1


@dataclass(frozen=True, eq=False)
class Newcomer:
    """A stream to prefill, with copies of its slot and pages, since a cancel may change the stream's own fields.

    `frames`, int [frames, codebooks], were generated before the stream was parked; they are prefilled after the prompt.
    """

    stream: Stream
    slot: int
    pages: list[int]
    frames: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int16))

    def rows(self, pad_text_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows to prefill: text ids int [rows] and code ids int [rows, codebooks], as in a Prompt."""
        prompt, count = self.stream.prompt, len(self.frames)
        if not count:
            return prompt.text_ids, prompt.code_ids
        text = [*prompt.trailing[:count], *[pad_text_id] * (count - len(prompt.trailing))]
        return np.concatenate([prompt.text_ids, text]), np.concatenate([prompt.code_ids, self.frames])


@dataclass(frozen=True)
class TextFeed:
    """Streamed text for a running part: `ids` follow the first `start` ids of `trailing`.

    `late` means that the frame that should be fed the first of them was launched without it.
    """

    slot: int
    start: int
    ids: list[int]
    is_open: bool
    late: bool


@dataclass(frozen=True)
class Batch:
    """One tick: streams to prefill, text to feed, and the slots (int64 [rows]) that generate a frame.

    `prefill_rows` is the sum over the newcomers. `grown` int64 [pages, 3] are newly assigned pages: slot, index in the
    slot's page table, page. `generations` int64 [rows] are the slots' generation counters at launch.
    """

    newcomers: list[Newcomer]
    feeds: list[TextFeed]
    grown: np.ndarray
    slots: np.ndarray
    generations: np.ndarray
    prefill_rows: int

    def __len__(self) -> int:
        return len(self.slots)

    def without(self, dropped: list[Newcomer]) -> "Batch":
        """The batch without some newcomers, since a slot without a prefilled prompt must not run."""
        if not dropped:
            return self
        rows = ~np.isin(self.slots, [newcomer.slot for newcomer in dropped])
        return replace(
            self,
            newcomers=[n for n in self.newcomers if n not in dropped],
            slots=self.slots[rows],
            generations=self.generations[rows],
        )


@dataclass(frozen=True)
class Frames:
    """Results of a tick: codes int [rows, codebooks]; `ended` bool [rows] marks rows that sampled end of speech."""

    codes: np.ndarray
    ended: np.ndarray


@dataclass(frozen=True)
class Chunks:
    """Chunks of one length, the most urgent first.

    `codes` is int32 [chunks, frames, codebooks], `history` int32 [chunks]: frames of each stream that the codec has
    decoded, its reference included; `counts` int [chunks]: frames that hold speech; `ready_at` float [chunks]: when the
    last of them was generated; `first` bool [chunks]: whether the stream begins here. A stream's last chunk is padded
    to the common length; since the codec is causal, padding does not affect earlier samples.
    """

    streams: list[Stream]
    slots: np.ndarray
    codes: np.ndarray
    history: np.ndarray
    counts: np.ndarray
    ready_at: np.ndarray
    first: np.ndarray

    def __len__(self) -> int:
        return len(self.streams)
