"""A function captured as a CUDA graph, and how rows are split among captured sizes."""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.pinned_memory import to_pinned

log = logging.getLogger(__name__)

Run = Callable[..., Any]
# Replays of one graph that the host may be ahead of the device.
HOST_BLOCKS = 4
LACKING = (
    "the GPU has no memory for %d of %d CUDA graphs: ticks of many streams run in parts, and prompts apart from them, "
    "which takes longer; lower kv_cache_gib or max_streams"
)


class HostInputs:
    """A graph's inputs, rows and then padding, in a block of page-locked memory."""

    def __init__(self, block: Tensor, padding: Sequence[np.ndarray], stream: torch.cuda.Stream) -> None:
        """`block` int64 holds the padding."""
        self._block, self._padding = block, padding
        self._parts = split_like(block.numpy(), padding)
        self._filled = [0] * len(padding)
        self._copied, self._stream = torch.cuda.Event(), stream

    def upload(self, inputs: Sequence[np.ndarray], target: Tensor) -> None:
        """Copies to the device; waits until it has the last ones."""
        # Unlike synchronize, query keeps the interpreter's lock.
        if not self._copied.query():
            self._copied.synchronize()
        for i, (part, rows, padding) in enumerate(zip(self._parts, inputs, self._padding, strict=True)):
            count, filled = len(rows), self._filled[i]
            part[:count] = rows
            part[count:filled] = padding[count:filled]
            self._filled[i] = count
        target.copy_(self._block, non_blocking=True)
        self._copied.record(self._stream)


class TickGraph:
    """A captured function of static int64 inputs; `replay` fills their first rows and pads the rest.

    A replay allocates nothing and makes few calls of PyTorch: most give up the interpreter's lock, and beside busy
    threads take a while to get it back.
    """

    def __init__(self, padding: Sequence[np.ndarray], run: Run, device: torch.device, pool: Any):
        """`padding` is the content of each input's unused rows, int64 [rows, ...]."""
        unused = np.concatenate([rows.ravel() for rows in padding])
        # Kept: asking for the current stream takes as long as a record.
        self.stream = torch.cuda.current_stream()
        blocks = to_pinned(np.tile(unused, (HOST_BLOCKS, 1)))
        self._hosts = cycle([HostInputs(block, padding, self.stream) for block in blocks])
        self._block = torch.from_numpy(unused).to(device)
        graph = torch.cuda.CUDAGraph()
        # Kernels are loaded, or built, while they are captured: "relaxed" permits that.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="relaxed"):
            self._output = run(*split_like(self._block, padding))
        # Runs padding only. The first replay uploads the graph to the device, which otherwise delays a first request.
        graph.replay()
        self._graph, self.pool = graph, graph.pool()

    def replay(self, *inputs: np.ndarray) -> Any:
        """The function's output, valid until the next replay."""
        next(self._hosts).upload(inputs, self._block)
        self._graph.replay()
        return self._output


class Graphs:
    """One function, captured for several numbers of rows of its last input."""

    def __init__(
        self, run: Run, buckets: Sequence[int], padding: Callable[[int], Sequence[np.ndarray]], needed: int
    ) -> None:
        """`padding` are the unused rows of each input, for a number of rows; graphs of up to `needed` rows must fit."""
        self.run, self.buckets, self.padding, self.needed = run, buckets, padding, needed
        self.captured: dict[int, TickGraph] = {}

    @property
    def most(self) -> int:
        """Rows of the largest graph."""
        return max(self.captured, default=0)

    def bucket(self, rows: int) -> int:
        """The smallest one for `rows`; the largest one where none suffices."""
        return min((bucket for bucket in self.captured if bucket >= rows), default=self.most)

    def of(self, rows: int) -> TickGraph:
        return self.captured[self.bucket(rows)]

    def split(self, rows: np.ndarray) -> Iterator[tuple[TickGraph, np.ndarray]]:
        """Parts of the largest graph's size, each with its smallest graph."""
        for start in range(0, len(rows), self.most):
            part = rows[start : start + self.most]
            yield self.of(len(part)), part

    def fill(self, rows: np.ndarray, max_padded: int) -> Iterator[tuple[TickGraph, np.ndarray]]:
        """Parts that fill a graph, as long as more than `max_padded` rows are left; then as `split`."""
        while len(rows) > max_padded:
            size = max(bucket for bucket in self.captured if bucket <= len(rows))
            yield self.captured[size], rows[:size]
            rows = rows[size:]
        yield from self.split(rows)


def capture_in_order(
    graphs: Sequence[Graphs],
    capture: Callable[[Sequence[np.ndarray], Run], TickGraph],
    progress: Callable[[int, int], None],
) -> None:
    """The largest one of each first, so that smaller ones reuse its memory.

    Goes on without those for which there is no memory. Raises RuntimeError if one of them is needed.
    """
    plan, lacking = [(one, rows) for one in graphs for rows in reversed(one.buckets)], 0
    for done, (one, rows) in enumerate(plan, start=1):
        try:
            one.captured[rows] = capture(one.padding(rows), one.run)
        except RuntimeError as error:
            # Raised by PyTorch's allocator, or by CUDA when it makes the graph.
            if "out of memory" not in str(error) or rows <= one.needed:
                raise
            lacking += 1
        progress(done, len(plan))
    if lacking:
        log.warning(LACKING, lacking, len(plan))


def split_like(block: Any, parts: Sequence[np.ndarray]) -> list[Any]:
    """Views of a flat array or tensor in the shapes of `parts`, one after the other."""
    ends = np.cumsum([0, *(prod(part.shape) for part in parts)]).tolist()
    return [block[ends[i] : ends[i + 1]].reshape(part.shape) for i, part in enumerate(parts)]


def up_to(buckets: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """Buckets for up to `limit` rows; a bucket above `limit` is replaced by `limit`."""
    smaller = tuple(bucket for bucket in buckets if bucket < limit)
    return smaller if smaller == buckets else (*smaller, limit)
