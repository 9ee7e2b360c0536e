"""What passes between the rooms: streams, the batches that they run in, the frames and chunks that they make."""

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
    the talker is fed `trailing[t]`, and the pad token once they are used up. `num_spoken` is how many tokens it speaks.
    A cloned voice adds `vector`, float32 [H], to row `vector_row`.

    While `is_open`, more ids follow and nothing is fed in their place. They come in through `arrived`, and `complete`
    says that these were the last; the scheduler alone moves them on, so that the runner reads what does not change.
    """

    text_ids: np.ndarray
    code_ids: np.ndarray
    trailing: list[int]
    num_spoken: int
    vector: np.ndarray | None = None
    vector_row: int = NONE
    max_frames: int | None = None
    """Frames that this part may take; None leaves it all that its stream may."""
    is_open: bool = False
    arrived: list[int] = field(default_factory=list)
    complete: bool = False

    def __len__(self) -> int:
        return len(self.text_ids)

    def take_arrived(self) -> list[int]:
        """Move what arrived to the ids that are fed; returns it."""
        taken, self.arrived = self.arrived, []
        self.trailing += taken
        self.is_open = self.is_open and not self.complete
        return taken


def no_prompt(num_codebooks: int) -> Prompt:
    """What a stream has while its first words have not come."""
    return Prompt(np.zeros(0, np.int32), np.zeros((0, num_codebooks), np.int32), [], 0)


class Sink(Protocol):
    """Where a stream's audio goes. Calls come from several threads; after `finish` the rest is passed over."""

    def send(self, pcm: np.ndarray) -> None:
        """Deliver int16 [samples] of 24 kHz audio."""

    def finish(self, error: RequestError | None) -> None:
        """End the stream, without error when None."""


class Status(Enum):
    """The stages of a stream. It has a slot while RUNNING to DRAINING, and pages of the cache while RUNNING."""

    NEW = "new"
    HOLDING = "holding for text"
    """Its first words have not come."""
    WAITING = "waiting for a slot"
    RUNNING = "running"
    PARKED = "parked"
    """Waits for pages, then its prompt and its frames are prefilled again."""
    RESTING = "resting between parts"
    """The text of the next part has not come."""
    DRAINING = "draining"
    """All frames are made, some are not decoded."""
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
    """What the scheduler and the engine know of one utterance. Times are perf_counter seconds.

    `prompt` is the part that is spoken, `following` are those after it; while `is_open`, more text may come. Each part
    is spoken as if it were alone, and the codec goes on without noticing.
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
    """Number of the part that is spoken, from 0."""
    reserved_frames: int = 0
    """Frames that a part may take that has not come yet; nothing is held for them."""

    @property
    def num_positions(self) -> int:
        """Key/value positions that the stream may come to need."""
        parts = max(len(prompt) + self.part_frames(prompt) for prompt in (self.prompt, *self.following))
        return max(parts, len(self.prompt) + self.reserved_frames)

    @property
    def seed(self) -> int:
        """The seed of the part that is spoken: another for each, so that no part repeats another's randomness."""
        return (self.sampling.seed + self.part) % MAX_SEED

    def part_frames(self, prompt: Prompt) -> int:
        """How many frames a part may take."""
        return self.max_frames if prompt.max_frames is None else min(prompt.max_frames, self.max_frames)

    def next_part(self) -> None:
        self.prompt = self.following.popleft()
        self.part += 1


@dataclass(frozen=True, eq=False)
class Newcomer:
    """A stream whose prompt is to be prefilled, and what it was given; its own fields may change under a cancel.

    `frames`, int [frames, codebooks], are those that it has made of the prompt already: they are prefilled behind it.
    """

    stream: Stream
    slot: int
    pages: list[int]
    frames: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int16))

    def rows(self, pad_text_id: int) -> tuple[np.ndarray, np.ndarray]:
        """What is prefilled: text ids int [rows] and code ids int [rows, codebooks], as those of a prompt."""
        prompt, count = self.stream.prompt, len(self.frames)
        if not count:
            return prompt.text_ids, prompt.code_ids
        text = [*prompt.trailing[:count], *[pad_text_id] * (count - len(prompt.trailing))]
        return np.concatenate([prompt.text_ids, text]), np.concatenate([prompt.code_ids, self.frames])


@dataclass(frozen=True)
class TextFeed:
    """Text that came for a part in progress: `ids` follow the first `start` ids that are fed one a frame.

    `late` says that the frame before the first of them went ahead without it.
    """

    slot: int
    start: int
    ids: list[int]
    is_open: bool
    late: bool


@dataclass(frozen=True)
class Batch:
    """One tick: streams to prefill, text to feed, and the slots (int64 [rows]) that each make a frame.

    `grown` int64 [pages, 3] are pages that streams were given: slot, place in the slot's page table, page.
    """

    newcomers: list[Newcomer]
    feeds: list[TextFeed]
    grown: np.ndarray
    slots: np.ndarray
    lives: np.ndarray

    def __len__(self) -> int:
        return len(self.slots)

    def without(self, dropped: list[Newcomer]) -> "Batch":
        """The batch without some of its newcomers: a slot that holds no prompt must not run."""
        if not dropped:
            return self
        rows = ~np.isin(self.slots, [newcomer.slot for newcomer in dropped])
        return replace(
            self,
            newcomers=[n for n in self.newcomers if n not in dropped],
            slots=self.slots[rows],
            lives=self.lives[rows],
        )


@dataclass(frozen=True)
class Frames:
    """What a tick made: codes int [rows, codebooks]; `ended` bool [rows] marks rows that sampled the end of speech."""

    codes: np.ndarray
    ended: np.ndarray


@dataclass(frozen=True)
class Chunks:
    """Chunks of one length, the most urgent first.

    `codes` is int32 [chunks, frames, codebooks], `history` int32 [chunks]: frames that the codec has had of each
    stream, and of the reference before it; `counts` int [chunks]: frames that hold speech; `ready_at` float [chunks]:
    when the last of them was made; `first` bool [chunks]: whether the stream begins here. A last chunk is filled up to
    the common length; the codec is causal, so what is filled in changes nothing before it.
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
