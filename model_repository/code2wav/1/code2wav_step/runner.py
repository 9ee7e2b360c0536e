"""Runs the step on any batch and chunk length: replays of captured CUDA graphs, or the plain step on a CPU."""

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from code2wav_step.config import MAX_BATCH, MAX_FRAMES
from code2wav_step.step import Step

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
FRAME_BUCKETS = (1, 2, 4, 8, 16, 32)
# Rows times frames of one graph: bounds its memory; more keep no multiprocessor busier.
MAX_ROW_FRAMES = 512

Shape = tuple[int, int]  # rows, frames
SHAPES = tuple((rows, frames) for frames in FRAME_BUCKETS for rows in ROW_BUCKETS if rows * frames <= MAX_ROW_FRAMES)
Progress = Callable[[int, int], None]


class PlainRunner:
    """The step as it is, in its own dtype."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._like = step.weights.codebooks

    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """As Step; the next state in the dtype of `state`."""
        device, dtype = self._like.device, self._like.dtype
        waveform, state_out = self.step(codes.to(device), state.to(device, dtype), history.to(device))
        return waveform, state_out.to(state.dtype)

    lend = __call__


class Graph:
    """The captured step for a batch and a chunk length, on buffers that other graphs use too."""

    def __init__(self, step: Step, inputs: tuple[Tensor, Tensor, Tensor], pool: Any) -> None:
        self._inputs = inputs
        step(*inputs)  # builds kernels, which cannot be done while capturing
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._outputs = step(*inputs)
        self.pool = self._graph.pool()

    def replay(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Fills the first rows; the outputs of those rows hold until any graph's next replay."""
        rows = len(inputs[0])
        for static, tensor in zip(self._inputs, inputs, strict=True):
            static[:rows].copy_(tensor, non_blocking=True)
        self._graph.replay()
        waveform, state_out = self._outputs
        return waveform[:rows], state_out[:rows]


class GraphRunner:
    """Nothing is captured later than by `capture`. Not for two threads."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self.step, self._config = step, step.config
        self._codes = torch.zeros(MAX_BATCH, MAX_FRAMES, self._config.num_quantizers, dtype=torch.int32, device=device)
        self._history = torch.zeros(MAX_BATCH, 1, dtype=torch.int32, device=device)
        dtype = step.weights.codebooks.dtype
        self._state = torch.zeros(MAX_BATCH, self._config.state_size, dtype=dtype, device=device)
        self._graphs: dict[Shape, Graph] = {}

    def capture(self, shapes: Sequence[Shape], progress: Progress = lambda done, total: None) -> None:
        self.step.ops.build(lambda: [self.step(*self._inputs(*shape)) for shape in shapes])
        pool = None
        # The largest first: the memory of its intermediate results serves the smaller ones.
        for done, shape in enumerate(sorted(shapes, key=lambda shape: -shape[0] * shape[1]), start=1):
            self._graphs[shape] = Graph(self.step, self._inputs(*shape), pool)
            pool = self._graphs[shape].pool
            progress(done, len(shapes))
        torch.cuda.empty_cache()  # what the runs before capturing left

    def _inputs(self, rows: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
        codes = self._codes.flatten()[: rows * frames * self._config.num_quantizers]
        return codes.view(rows, frames, -1), self._state[:rows], self._history[:rows]

    @torch.inference_mode()
    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """As Step, for any batch and 1 to 32 frames; the results are the caller's own. Does not wait for the device."""
        if graph := self._whole(codes):
            waveform, state_out = graph.replay(codes, state, history)
            return waveform.clone(), state_out.clone()
        return self._in_parts(codes, state, history)

    @torch.inference_mode()
    def lend(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """As a call; the results hold until the next one."""
        graph = self._whole(codes)
        return graph.replay(codes, state, history) if graph else self._in_parts(codes, state, history)

    def _whole(self, codes: Tensor) -> Graph | None:
        """The graph that takes the batch as it is."""
        rows, frames = codes.shape[:2]
        fits = frames in FRAME_BUCKETS and rows * frames <= MAX_ROW_FRAMES
        return self._graphs[_bucket(rows), frames] if fits else None

    def _in_parts(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        rows, frames = codes.shape[:2]
        waveform = self._state.new_empty(rows, frames * self._config.samples_per_frame, dtype=torch.float32)
        state_out = self._state.new_empty(state.shape)
        for start, stop in spans(frames):
            samples = slice(start * self._config.samples_per_frame, stop * self._config.samples_per_frame)
            valid = (history + start).clamp(max=self._config.window)
            part, states = codes[:, start:stop], state if start == 0 else state_out
            for first, last, bucket in groups(rows, stop - start):
                group = slice(first, last)
                graph = self._graphs[bucket, stop - start]
                heard, following = graph.replay(part[group], states[group], valid[group])
                waveform[group, samples] = heard
                state_out[group] = following
        return waveform, state_out


@torch.inference_mode()
def advance(
    runner: "GraphRunner | PlainRunner", codes: Tensor, history: Tensor, states: Tensor, rows: Tensor
) -> Tensor:
    """The waveform of streams whose states stay in `states` [.., S]; it holds until the runner's next call.

    rows [B, 2]: where each stream's state is, and where the next one goes.
    """
    before, after = rows.T.to(states.device, torch.int64)
    waveform, state_out = runner.lend(codes, states.index_select(0, before), history)
    states.index_copy_(0, after, state_out)
    return waveform


def spans(frames: int) -> Iterator[tuple[int, int]]:
    """A chunk as runs of the captured lengths, longest first: (start, stop)."""
    start = 0
    while start < frames:
        length = FRAME_BUCKETS[bisect.bisect_right(FRAME_BUCKETS, frames - start) - 1]
        yield start, start + length
        start += length


def groups(rows: int, frames: int) -> Iterator[tuple[int, int, int]]:
    """A batch as runs of captured sizes: (first row, behind the last, rows of the graph)."""
    most = min(MAX_BATCH, MAX_ROW_FRAMES // frames)
    for first in range(0, rows, most):
        last = min(first + most, rows)
        yield first, last, _bucket(last - first)


def _bucket(rows: int) -> int:
    return ROW_BUCKETS[bisect.bisect_left(ROW_BUCKETS, rows)]
