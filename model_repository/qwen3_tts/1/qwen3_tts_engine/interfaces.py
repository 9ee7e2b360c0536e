"""What the engine asks of the two that do the work."""

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qwen3_tts_engine.core import Chunks, Frames, Newcomer, TextFeed
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
    """Text tokens of the longest stream that are fed one a frame."""

    @property
    def max_pages(self) -> int:
        return -(-self.max_positions // self.page_size)


@dataclass(frozen=True)
class SchedulerLimits:
    page_size: int
    num_pages: int
    max_batch: int
    max_waiting: int
    prefill_rows: int
    """Prompt rows that one tick may prefill beside the running streams; one newcomer always gets in."""
    refuse_overload: bool = False
    """Refuse a stream that has no slot or could not be served in real time, instead of letting it wait."""


Tick = Any
"""A launched batch whose frames are not read yet; each runner has its own kind."""


class Runner(Protocol):
    """Makes frames. One thread calls it."""

    limits: RunnerLimits
    lookahead: int
    """Ticks that are launched before the first is read: 1 hides the host behind the GPU, 0 on the CPU."""

    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        """Load prompts into their slots; returns those that failed, with the reason."""

    def grow(self, grown: np.ndarray) -> None:
        """Give slots further pages, int64 [pages, 3]: slot, place in its page table, page."""

    def feed(self, feeds: list[TextFeed]) -> None:
        """Bring text to parts in progress."""

    def launch(self, slots: np.ndarray) -> Tick:
        """Start one frame for each of `slots`, int64 [rows]."""

    def collect(self, tick: Tick) -> Frames:
        """Wait for a tick's frames; ticks are collected in the order of their launch."""


class CodecClient(Protocol):
    """Turns chunks into audio. One thread calls it."""

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        """Returns int16 [chunks, samples], and the rows that have no audio with the reason."""


def decode(codec: CodecClient, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
    """As CodecClient.decode; an exception becomes the reason why each row has no audio."""
    try:
        return codec.decode(chunks)
    except RequestError as error:
        reason = error
    except Exception as error:
        log.exception("the codec failed for %d chunks", len(chunks))
        reason = RequestError(f"the codec failed: {error}")
    return np.empty((len(chunks), 0), np.int16), dict.fromkeys(range(len(chunks)), reason)
