"""Interfaces of the runner, the codec client and the calls of other models."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from qwen3_tts_engine.core.batches import Chunks, Frames, Newcomer, TextFeed
from qwen3_tts_engine.request import RequestError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunnerLimits:
    num_slots: int
    num_pages: int
    page_size: int
    max_positions: int
    """Positions of the longest stream: prompt and frames."""
    max_trailing: int
    """Text tokens of the longest stream that are fed one per frame."""

    @property
    def max_pages(self) -> int:
        return -(-self.max_positions // self.page_size)


@dataclass(frozen=True)
class SchedulerLimits:
    page_size: int
    num_pages: int
    max_batch: int
    max_waiting: int
    max_prefill_seconds: float
    """Time that the prefills of a tick's other newcomers may add to that of the first, as measured."""
    refuse_overload: bool = False
    """Refuse a stream beyond the slots or the real-time capacity instead of queueing it."""
    max_silent_frames: int = 0
    """A part ends after this many silent frames that follow speech; 0 disables that."""
    max_repeated_frames: int = 0
    """A part ends when this many frames repeat; 0 disables that."""
    min_token_frames: float = 0.0
    """Fewest frames of each text token of a part that was spoken to its end."""


Tick = Any
"""A launched batch whose frames are not read yet; its type depends on the runner."""


class Runner(Protocol):
    """Generates frames. Called by one thread."""

    limits: RunnerLimits
    lookahead: int
    """Ticks launched before the first is read: 1 overlaps host and GPU work, 0 on the CPU."""
    has_graphs: bool
    """Whether a tick is a graph of compiled kernels instead of PyTorch operations."""

    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        """Load prompts into their slots, by the end of the next launch; returns those that failed, with the reason."""

    def grow(self, grown: np.ndarray) -> None:
        """Assign pages to slots, int64 [pages, 3]: slot, index in its page table, page."""

    def feed(self, feeds: list[TextFeed]) -> None:
        """Feed text to running parts."""

    def launch(self, slots: np.ndarray) -> Tick:
        """Start one frame for each of `slots`, int64 [rows]."""

    def collect(self, tick: Tick) -> Frames:
        """Wait for a tick's frames; ticks are collected in launch order."""


@dataclass(frozen=True)
class ModelCall:
    """A call of another model of the server; `outputs` are names of tensors."""

    model: str
    inputs: dict[str, np.ndarray]
    outputs: list[str]
    parameters: dict[str, Any] = field(default_factory=dict)


CallModel = Callable[[ModelCall], list[np.ndarray]]
"""Returns the outputs. Raises RequestError."""


class CodecClient(Protocol):
    """Turns chunks into audio. Called by several threads, with different streams."""

    max_calls: int
    """Calls under way at once that are worth their cost."""

    def announce(self) -> None:
        """A call follows within milliseconds."""

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        """Returns int16 [chunks, samples], and the errors of rows without audio."""


@dataclass(frozen=True)
class Decoded:
    """A codec call: its chunks, CodecClient.decode's values, and when it began and ended, perf_counter seconds."""

    chunks: Chunks
    pcm: np.ndarray
    failed: dict[int, RequestError]
    called: float
    ended: float


def decode(codec: CodecClient, chunks: Chunks) -> Decoded:
    """Calls CodecClient.decode; an exception becomes the error of every row."""
    called = time.perf_counter()
    pcm, failed = _decode(codec, chunks)
    return Decoded(chunks, pcm, failed, called, time.perf_counter())


def _decode(codec: CodecClient, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
    try:
        return codec.decode(chunks)
    except RequestError as error:
        reason = error
    except Exception as error:
        log.exception("the codec failed for %d chunks", len(chunks))
        reason = RequestError(f"the codec failed: {error}")
    return np.empty((len(chunks), 0), np.int16), dict.fromkeys(range(len(chunks)), reason)
