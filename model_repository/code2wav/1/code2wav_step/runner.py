"""Runs the step on any batch and chunk length: replays captured CUDA graphs, or calls the step on a CPU."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from code2wav_step.buckets import MAX_ROW_FRAMES, BatchShape, Buckets
from code2wav_step.config import Contract, StepConfig
from code2wav_step.pcm import to_int16
from code2wav_step.step import Step

Progress = Callable[[int, int], None]
# As Step.
Run = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class EagerStepRunner:
    """The step without graphs, in its own dtype."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._like = step.weights.codebooks

    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """As Step; the next state in the dtype of `state`."""
        device, dtype = self._like.device, self._like.dtype
        waveform, state_out = self.step(codes.to(device), state.to(device, dtype), history.to(device))
        return waveform, state_out.to(state.dtype)

    lend = __call__

    def advance(self, codes: Tensor, states: Tensor, places: Tensor) -> Tensor:
        """As GraphStepRunner.advance."""
        return _advance(self, self.step.config.contract, codes, states, places)


class Buffers:
    """Static buffers of all graphs: inputs and samples in page-locked memory, the rest on the device."""

    def __init__(self, config: StepConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.quantizers, self.samples = config.num_quantizers, config.samples_per_frame
        max_batch = config.contract.max_batch
        codes = max_batch * config.contract.max_frames * self.quantizers
        samples = MAX_ROW_FRAMES * self.samples
        self.host_codes = torch.zeros(codes, dtype=torch.int32, pin_memory=True)
        self.host_history = torch.zeros(max_batch, 1, dtype=torch.int32, pin_memory=True)
        self.host_rows = torch.zeros(2, max_batch, dtype=torch.int64, pin_memory=True)
        self.codes, self.history = self.host_codes.to(device), self.host_history.to(device)
        self.rows = self.host_rows.to(device)
        self.state = torch.zeros(max_batch, config.state_size, dtype=dtype, device=device)
        self.pcm = torch.empty(samples, dtype=torch.int16, pin_memory=True)

    def inputs(self, rows: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
        return self._shaped(self.codes, rows, frames), self.state[:rows], self.history[:rows]

    def upload(self, rows: int, frames: int) -> None:
        count = rows * frames * self.quantizers
        self.codes[:count].copy_(self.host_codes[:count], non_blocking=True)
        self.history[:rows].copy_(self.host_history[:rows], non_blocking=True)

    def fill(self, codes: Tensor, history: Tensor) -> None:
        """Uses NumPy, ten times as fast as PyTorch here."""
        rows, frames = codes.shape[:2]
        self._shaped(self.host_codes, rows, frames).numpy()[:] = codes.numpy()
        self.host_history.numpy()[:rows] = history.numpy()

    def upload_rows(self, rows: Tensor) -> Tensor:
        """int32 [B, 2] as int64 [2, B] on the device."""
        self.host_rows.numpy()[:, : len(rows)] = rows.numpy().T
        return self.rows.copy_(self.host_rows, non_blocking=True)[:, : len(rows)]

    def pcm_view(self, rows: int, frames: int) -> Tensor:
        count = frames * self.samples
        return self.pcm[: rows * count].view(rows, count)

    def _shaped(self, codes: Tensor, rows: int, frames: int) -> Tensor:
        return codes[: rows * frames * self.quantizers].view(rows, frames, self.quantizers)


class StepGraph:
    """The captured step for a batch and a chunk length, from codes to samples on the host."""

    def __init__(self, step: Step, buffers: Buffers, shape: BatchShape, pool: Any) -> None:
        def run() -> tuple[Tensor, Tensor]:
            buffers.upload(*shape)
            waveform, state_out = step(*buffers.inputs(*shape))
            buffers.pcm_view(*shape).copy_(to_int16(waveform, step.config.contract), non_blocking=True)
            return waveform, state_out

        run()  # compiles kernels, which is impossible during capture
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._outputs = run()
        self.pool = self._graph.pool()
        self._buffers = buffers

    def replay(self, codes: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """waveform and next state of the states in the buffers. They and the samples are valid until the next replay
        of any graph, before which this one must have ended."""
        rows = len(codes)
        self._buffers.fill(codes, history)
        self._graph.replay()
        waveform, state_out = self._outputs
        return waveform[:rows], state_out[:rows]


class GraphStepRunner:
    """Captures graphs in `capture` only. Not thread-safe."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self.step, self._config = step, step.config
        self._buckets = Buckets(step.config.contract.max_batch, step.config.contract.max_frames)
        self._buffers = Buffers(step.config, step.weights.codebooks.dtype, device)
        self._graphs: dict[BatchShape, StepGraph] = {}
        self._replayed = torch.cuda.Event()

    def capture(
        self, shapes: Sequence[BatchShape] | None = None, progress: Progress = lambda done, total: None
    ) -> None:
        """Captures `shapes`; calls that need others fail. None captures all."""
        shapes = self._buckets.shapes if shapes is None else shapes
        self.step.ops.build(lambda: [self.step(*self._buffers.inputs(*shape)) for shape in shapes])
        pool = None
        # The largest first: smaller ones reuse the memory of its intermediate results.
        for done, shape in enumerate(sorted(shapes, key=lambda shape: -shape[0] * shape[1]), start=1):
            self._graphs[shape] = StepGraph(self.step, self._buffers, shape, pool)
            pool = self._graphs[shape].pool
            progress(done, len(shapes))
        torch.cuda.empty_cache()  # left by the runs before capture

    @torch.inference_mode()
    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """As Step, for any batch and 1 to 32 frames; codes and history on the host. The caller owns the results.

        Does not wait for the results.
        """
        if graph := self._whole_graph(codes):
            waveform, state_out = self._replay(graph, codes, state, history)
            return waveform.clone(), state_out.clone()
        return self._in_parts(codes, state, history)

    @torch.inference_mode()
    def lend(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """As a call; the results are valid until the next one."""
        graph = self._whole_graph(codes)
        return self._replay(graph, codes, state, history) if graph else self._in_parts(codes, state, history)

    @torch.inference_mode()
    def advance(self, codes: Tensor, states: Tensor, places: Tensor) -> Tensor:
        """The samples (pcm.to_int16) of streams whose states stay in `states` [.., S]; valid until the next call.

        places [B, 3]: row of each stream's state, row for the next one, and its history; on the host, as codes.
        """
        graph = self._whole_graph(codes)
        if graph is None:
            return _advance(self._in_parts, self._config.contract, codes, states, places)
        self._replayed.synchronize()
        before, after = self._buffers.upload_rows(places[:, :2])
        torch.index_select(states, 0, before, out=self._buffers.state[: len(codes)])
        _, state_out = graph.replay(codes, places[:, 2:])
        states.index_copy_(0, after, state_out)
        self._replayed.record()
        return self._buffers.pcm_view(*codes.shape[:2])

    def _whole_graph(self, codes: Tensor) -> StepGraph | None:
        """The graph for the whole batch, if any."""
        shape = self._buckets.whole(*codes.shape[:2])
        return self._graphs[shape] if shape else None

    def _replay(self, graph: StepGraph, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        # The last replay may still read host buffers that are overwritten next.
        self._replayed.synchronize()
        self._buffers.state[: len(state)].copy_(state, non_blocking=True)
        outputs = graph.replay(codes, history)
        self._replayed.record()
        return outputs

    def _in_parts(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        rows, frames = codes.shape[:2]
        samples_per_frame = self._config.samples_per_frame
        device = self._buffers.state.device
        waveform = torch.empty(rows, frames * samples_per_frame, dtype=torch.float32, device=device)
        state_out = torch.empty(state.shape, dtype=self._buffers.state.dtype, device=device)
        for start, stop in self._buckets.spans(frames):
            samples = slice(start * samples_per_frame, stop * samples_per_frame)
            valid = (history + start).clamp(max=self._config.window)
            part, states = codes[:, start:stop], state if start == 0 else state_out
            for first, last, bucket in self._buckets.groups(rows, stop - start):
                group = slice(first, last)
                graph = self._graphs[bucket, stop - start]
                group_waveform, next_states = self._replay(graph, part[group], states[group], valid[group])
                waveform[group, samples] = group_waveform
                state_out[group] = next_states
        return waveform, state_out


def _advance(run: Run, contract: Contract, codes: Tensor, states: Tensor, places: Tensor) -> Tensor:
    """GraphStepRunner.advance by any `run` of the step."""
    before, after = places[:, :2].T.to(states.device, torch.int64)
    waveform, state_out = run(codes, states.index_select(0, before), places[:, 2:])
    states.index_copy_(0, after, state_out)
    return to_int16(waveform, contract).cpu()
