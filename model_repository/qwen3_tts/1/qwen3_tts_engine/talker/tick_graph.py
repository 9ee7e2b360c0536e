"""A function captured as a CUDA graph, and how rows are split among captured sizes."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.pinned_memory import to_pinned
from qwen3_tts_engine.talker.kernels.gpu_trace import traced

log = logging.getLogger(__name__)

Run = Callable[..., Tensor | None]
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
        """`padding` is the content of each input's unused rows, int64 [rows, ...].

        `run` must have run once before, to build its kernels.
        """
        unused = np.concatenate([rows.ravel() for rows in padding])
        # To ask for the current stream takes as long as a record.
        self.stream = torch.cuda.current_stream()
        blocks = to_pinned(np.tile(unused, (HOST_BLOCKS, 1)))
        self._hosts = cycle([HostInputs(block, padding, self.stream) for block in blocks])
        self._block = torch.from_numpy(unused).to(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._output = run(*split_like(self._block, padding))
        # Of padding only. The first replay uploads the graph to the device, which otherwise delays a first request.
        graph.replay()
        self._graph = traced(graph)
        self.pool = graph.pool()

    def replay(self, *inputs: np.ndarray) -> Tensor | None:
        """The function's output, valid until the next replay."""
        next(self._hosts).upload(inputs, self._block)
        self._graph.replay()
        return self._output


def capture_in_order(
    plan: Sequence[tuple[dict[int, TickGraph], int, Sequence[np.ndarray], Run]],
    capture: Callable[[Sequence[np.ndarray], Run], TickGraph],
    is_needed: Callable[[int, Run], bool],
    progress: Callable[[int, int], None],
) -> None:
    """`plan`: where each graph belongs, its number of rows, its padding and what it runs.

    Goes on without those for which there is no memory. Raises RuntimeError if one of them is needed.
    """
    lacking = 0
    for done, (graphs, rows, padding, run) in enumerate(plan, start=1):
        try:
            graphs[rows] = capture(padding, run)
        except RuntimeError as error:
            # Of PyTorch's allocator, or of CUDA when it makes the graph.
            if "out of memory" not in str(error) or is_needed(rows, run):
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


def bucket_of(buckets: Iterable[int], rows: int) -> int:
    """The smallest bucket for `rows`; the largest one where none suffices."""
    return min((bucket for bucket in buckets if bucket >= rows), default=max(buckets))


def filled_parts(rows: np.ndarray, buckets: Iterable[int], max_padded: int) -> Iterator[np.ndarray]:
    """Parts that fill a bucket, as long as more than `max_padded` rows are left."""
    while len(rows) > max_padded:
        size = max(bucket for bucket in buckets if bucket <= len(rows))
        yield rows[:size]
        rows = rows[size:]
    if len(rows):
        yield rows


def split(graphs: dict[int, TickGraph], rows: np.ndarray) -> Iterator[tuple[TickGraph, np.ndarray]]:
    """Splits rows by the largest graph, each part with its smallest graph."""
    largest = max(graphs)
    for start in range(0, len(rows), largest):
        part = rows[start : start + largest]
        yield graphs[bucket_of(graphs, len(part))], part
