"""One utterance in flight."""

import time
from collections import deque
from dataclasses import dataclass, field
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
