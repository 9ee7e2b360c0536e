"""One utterance in flight."""

import time
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from qwen3_tts_engine.request import RequestError, Sampling
from qwen3_tts_engine.voice import Voice

NONE = -1


@dataclass(frozen=True)
class Prompt:
    """Rows to prefill and the text that follows them.

    Row i is the projected embedding of `text_ids[i]` plus the sum over j of the embedding of codebook j for
    `code_ids[i, j]`; NONE adds nothing. `text_ids` is int32 [rows], `code_ids` int32 [rows, codebooks]. After frame t
    the talker is fed `trailing[t]`, and the pad token once they are used up. `num_spoken` is how many tokens it speaks.
    A cloned voice adds `vector`, float32 [H], to row `vector_row`.
    """

    text_ids: np.ndarray
    code_ids: np.ndarray
    trailing: list[int]
    num_spoken: int
    vector: np.ndarray | None = None
    vector_row: int = NONE

    def __len__(self) -> int:
        return len(self.text_ids)


class Sink(Protocol):
    """Where a stream's audio goes. Calls come from several threads; after `finish` the rest is passed over."""

    def send(self, pcm: np.ndarray) -> None:
        """Deliver int16 [samples] of 24 kHz audio."""

    def finish(self, error: RequestError | None) -> None:
        """End the stream, without error when None."""


@dataclass(eq=False)
class Stream:
    """What the scheduler and both loops know of one utterance. Times are perf_counter seconds."""

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

    @property
    def num_positions(self) -> int:
        """Key/value positions that the stream may come to need."""
        return len(self.prompt) + self.max_frames
