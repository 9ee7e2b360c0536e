"""A function captured as a CUDA graph, and how rows are split among captured sizes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.pinned_memory import to_pinned

Run = Callable[..., Tensor | None]


class TickGraph:
    """A captured function of static int64 inputs; `replay` fills their first rows and pads the rest."""

    def __init__(self, padding: Sequence[np.ndarray], run: Run, device: torch.device, pool: Any):
        """`padding` is the content of each input's unused rows, int64 [rows, ...].

        `run` must have run once before, to build its kernels.
        """
        self._padding = padding
        self._inputs = [torch.from_numpy(rows).to(device) for rows in padding]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._output = run(*self._inputs)

    def replay(self, *inputs: np.ndarray) -> Tensor | None:
        """The function's output, valid until the next replay."""
        for target, rows, padding in zip(self._inputs, inputs, self._padding, strict=True):
            target.copy_(to_pinned(padded(rows, padding)), non_blocking=True)
        self._graph.replay()
        return self._output


def padded(rows: np.ndarray, padding: np.ndarray) -> np.ndarray:
    """`rows`, then those of `padding` that follow."""
    return np.concatenate([rows, padding[len(rows) :]])


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
