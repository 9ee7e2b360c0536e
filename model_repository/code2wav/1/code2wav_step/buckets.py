"""The batch shapes that have a CUDA graph, and how a call is split into them."""

import bisect
from collections.abc import Iterator

# Rows times frames of one graph: bounds its memory, 4 MiB each; more would not use the GPU better.
MAX_ROW_FRAMES = 512
# The same where a server has fewer GiB of a GPU (the talker's memory_plan.py reserves as much).
SMALL_ROW_FRAMES = {9: 64, 11: 128, 20: 256}
GIB = 1 << 30
# A call takes 0.5 ms plus 15 µs for each of these (measured on one H200): graphs are spaced closer than powers of two
# where that saves at least this many.
GRAIN_ROW_FRAMES = 16

BatchShape = tuple[int, int]  # rows, frames


def row_frames(total: int) -> int:
    """Rows times frames of the largest graph where a server has `total` bytes of a GPU."""
    return next((frames for gib, frames in SMALL_ROW_FRAMES.items() if total < gib * GIB), MAX_ROW_FRAMES)


class Buckets:
    """Frames are powers of two; rows are powers of two, and three sizes between two."""

    def __init__(self, max_batch: int, max_frames: int, max_row_frames: int = MAX_ROW_FRAMES) -> None:
        self._max_batch, self._max_row_frames = max_batch, max_row_frames
        self._frames = tuple(1 << i for i in range(max_frames.bit_length()))
        self._rows = {frames: self._row_buckets(frames) for frames in self._frames}

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        return tuple((rows, frames) for frames, buckets in self._rows.items() for rows in buckets)

    def whole(self, rows: int, frames: int) -> BatchShape | None:
        """The shape that holds a whole batch, if any."""
        fits = frames in self._frames and rows * frames <= self._max_row_frames
        return (self._bucket(rows, frames), frames) if fits else None

    def spans(self, frames: int) -> Iterator[tuple[int, int]]:
        """Splits a chunk into captured lengths, longest first: (start, stop)."""
        start = 0
        while start < frames:
            length = self._frames[bisect.bisect_right(self._frames, frames - start) - 1]
            yield start, start + length
            start += length

    def groups(self, rows: int, frames: int) -> Iterator[tuple[int, int, int]]:
        """Splits a batch into captured sizes: (first row, end, rows of the graph)."""
        largest = self._rows[frames][-1]
        for start in range(0, rows, largest):
            stop = min(start + largest, rows)
            yield start, stop, self._bucket(stop - start, frames)

    def _bucket(self, rows: int, frames: int) -> int:
        buckets = self._rows[frames]
        return buckets[bisect.bisect_left(buckets, rows)]

    def _row_buckets(self, frames: int) -> tuple[int, ...]:
        powers = [1 << i for i in range(self._max_batch.bit_length())]
        quarters = {low + max(1, low // 4) * i for low in powers for i in range(4)}
        fits = (rows for rows in sorted(quarters) if rows <= min(self._max_batch, self._max_row_frames // frames))
        return tuple(rows for rows in fits if rows in powers or rows * frames % GRAIN_ROW_FRAMES == 0)
