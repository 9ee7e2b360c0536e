"""Runs the step on any batch and chunk length: replays captured CUDA graphs, or calls the step on a CPU."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from code2wav_step.buckets import MAX_ROW_FRAMES, BatchShape, Buckets, row_frames
from code2wav_step.config import StepConfig
from code2wav_step.device_rows import DeviceRows, row_addresses
from code2wav_step.rows import Places
from code2wav_step.step import Step

Progress = Callable[[int, int], None]
# The signature of Step.
Run = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
# The talker's setting of that name (qwen3_tts_engine/config.py).
MEMORY_SHARE = "QWEN3_TTS_GPU_MEMORY_SHARE"


class EagerStepRunner:
    """The step without graphs, in its own dtype."""

    def __init__(self, step: Step) -> None:
        self.step, self.config = step, step.config
        self._like = step.weights.codebooks

    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """Runs Step; the next state has the dtype of `state`."""
        device, dtype = self._like.device, self._like.dtype
        waveform, state_out = self.step(codes.to(device), state.to(device, dtype), history.to(device))
        return waveform, state_out.to(state.dtype)

    lend = __call__

    def context(self) -> AbstractContextManager[object]:
        return nullcontext()

    def new_rows(self) -> DeviceRows:
        return _new_rows(self.step)

    def decode(self, codes: np.ndarray, rows: DeviceRows, places: Places) -> np.ndarray:
        samples: np.ndarray = self.advance(codes, rows, places).numpy()
        return samples

    def advance(self, codes: np.ndarray, rows: DeviceRows, places: Places) -> Tensor:
        """See GraphStepRunner.advance."""
        return _advance(self, self.step, codes, rows, places)

    def prepare(self, codes: np.ndarray, rows: DeviceRows, places: Places) -> None:
        """There is nothing to prepare."""


class Buffers:
    """Static buffers of all graphs: inputs and samples in page-locked memory, the rest on the device.

    The inputs are adjacent, so that one copy uploads those of a call.
    """

    def __init__(self, config: StepConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.quantizers, self.samples = config.num_quantizers, config.samples_per_frame
        rows = config.contract.max_batch
        self._ends = np.cumsum([0, 2 * rows * 8, rows * 4, rows * config.contract.max_frames * self.quantizers * 4])
        self._host = torch.zeros(int(self._ends[-1]), dtype=torch.uint8, pin_memory=True)
        self._inputs = self._host.to(device)
        self.state = torch.zeros(rows, config.state_size, dtype=dtype, device=device)
        self.pcm = torch.empty(MAX_ROW_FRAMES * self.samples, dtype=torch.int16, pin_memory=True)
        self._own_addresses = row_addresses(self.state, np.arange(rows))
        self._host_parts = [part.numpy() for part in self._parts(self._host)]
        self._host_parts[0][:] = self._own_addresses
        self.upload(rows, config.contract.max_frames)
        self.addresses, self._history, self._codes = self._parts(self._inputs)

    def inputs(self, rows: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
        codes = self._codes[: rows * frames * self.quantizers].view(rows, frames, self.quantizers)
        return codes, self.state[:rows], self._history[:rows, None]

    def upload(self, rows: int, frames: int) -> None:
        size = self._ends[2] + rows * frames * self.quantizers * 4
        self._inputs[:size].copy_(self._host[:size], non_blocking=True)

    def fill(self, codes: np.ndarray, history: np.ndarray, addresses: np.ndarray | None = None) -> None:
        """`addresses` int64 [2, B] are those of each row's state and its next one, by default in `state`."""
        all_addresses, all_history, all_codes = self._host_parts
        rows = len(codes)
        all_addresses[:] = self._own_addresses
        if addresses is not None:
            all_addresses[:, :rows] = addresses
        all_history[:rows] = history
        all_codes[: codes.size] = codes.ravel()

    def pcm_view(self, rows: int, frames: int) -> Tensor:
        count = frames * self.samples
        return self.pcm[: rows * count].view(rows, count)

    def _parts(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Addresses int64 [2, rows], history int32 [rows] and codes int32."""
        addresses, history, codes = (inputs[i:j] for i, j in pairwise(self._ends.tolist()))
        return addresses.view(torch.int64).view(2, -1), history.view(torch.int32), codes.view(torch.int32)


def run_step(step: Step, buffers: Buffers, shape: BatchShape) -> tuple[Tensor, Tensor]:
    """Decodes from codes to samples on the host; returns the waveform and the next state of those in the buffers."""
    buffers.upload(*shape)
    waveform, state_out = step(*buffers.inputs(*shape))
    buffers.pcm_view(*shape).copy_(step.ops.to_int16(waveform), non_blocking=True)
    return waveform, state_out


class StepGraph:
    """The captured step for a batch and a chunk length; it must have run before, since capture compiles no kernels."""

    def __init__(self, step: Step, buffers: Buffers, shape: BatchShape, pool: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._outputs = run_step(step, buffers, shape)
        # The first replay uploads the graph to the device, which otherwise delays a first request.
        graph.replay()
        self._graph, self.pool = graph, graph.pool()

    def replay(self) -> None:
        """Runs on what is in the buffers. The results are valid until the next replay of any graph, before which this
        one must have ended."""
        self._graph.replay()

    def outputs(self, rows: int) -> tuple[Tensor, Tensor]:
        """waveform, and the next state of the states in the buffers."""
        waveform, state_out = self._outputs
        return waveform[:rows], state_out[:rows]


class GraphStepRunner:
    """Captures graphs in `capture` only. Not thread-safe."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self.step, self.config = step, step.config
        contract, total = step.config.contract, torch.cuda.get_device_properties(device).total_memory
        share = float(os.environ.get(MEMORY_SHARE) or 1)
        self._buckets = Buckets(contract.max_batch, contract.max_frames, row_frames(int(share * total)))
        self._buffers = Buffers(step.config, step.weights.codebooks.dtype, device)
        self._has_addresses = step.ops.address_states(self._buffers.addresses)
        self._graphs: dict[BatchShape, StepGraph] = {}
        self._replayed, self._stream = torch.cuda.Event(), torch.cuda.current_stream()

    def capture(
        self, shapes: Sequence[BatchShape] | None = None, progress: Progress = lambda done, total: None
    ) -> None:
        """Captures `shapes`; calls that need others fail. None captures all."""
        shapes = self._buckets.shapes if shapes is None else shapes

        def launch_all() -> None:
            for shape in shapes:
                self.step(*self._buffers.inputs(*shape))

        self.step.ops.build(launch_all)
        pool = None
        # The largest first: smaller ones reuse the memory of its intermediate results.
        ordered = sorted(shapes, key=lambda shape: -shape[0] * shape[1])
        for shape in ordered:
            run_step(self.step, self._buffers, shape)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # whose memory the graphs take next
        for done, shape in enumerate(ordered, start=1):
            self._graphs[shape] = StepGraph(self.step, self._buffers, shape, pool)
            pool = self._graphs[shape].pool
            progress(done, len(ordered))

    @torch.inference_mode()
    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """Runs Step for any batch and 1 to 32 frames; codes and history on the host. The caller owns the results.

        Does not wait for the results.
        """
        if graph := self._whole_graph(*codes.shape[:2]):
            waveform, state_out = self._replay(graph, codes, state, history)
            return waveform.clone(), state_out.clone()
        return self._in_parts(codes, state, history)

    @torch.inference_mode()
    def lend(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """Like a call, but the results are valid only until the next one."""
        graph = self._whole_graph(*codes.shape[:2])
        return self._replay(graph, codes, state, history) if graph else self._in_parts(codes, state, history)

    def context(self) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return context

    def new_rows(self) -> DeviceRows:
        return _new_rows(self.step)

    def decode(self, codes: np.ndarray, rows: DeviceRows, places: Places) -> np.ndarray:
        pcm = self.advance(codes, rows, places)
        self._stream.synchronize()
        samples: np.ndarray = pcm.numpy()
        return samples

    def advance(self, codes: np.ndarray, rows: DeviceRows, places: Places) -> Tensor:
        """The samples (pcm.to_int16) of codes int32 [B, T, 16], whose states stay in `rows`; valid until the next call.

        Does not wait for the results.
        """
        if (graph := self.prepare(codes, rows, places)) is None:
            return _advance(self.lend, self.step, codes, rows, places)
        graph.replay()
        self._replayed.record(self._stream)
        return self._buffers.pcm_view(*codes.shape[:2])

    def prepare(self, codes: np.ndarray, rows: DeviceRows, places: Places) -> StepGraph | None:
        """Fills the buffers for `advance`; returns the graph to replay, if there is one."""
        # No operation of PyTorch here: after a pause of milliseconds each takes the host up to 0.1 ms.
        graph = self._whole_graph(*codes.shape[:2])
        if graph is None or not self._has_addresses:
            return None
        self._replayed.synchronize()
        self._buffers.fill(codes, places.history, rows.addresses(places))
        return graph

    def _whole_graph(self, rows: int, frames: int) -> StepGraph | None:
        """The graph for the whole batch, if any."""
        shape = self._buckets.whole(rows, frames)
        return self._graphs[shape] if shape else None

    def _replay(self, graph: StepGraph, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        # The last replay may still read host buffers that are overwritten next.
        self._replayed.synchronize()
        self._buffers.state[: len(state)].copy_(state, non_blocking=True)
        self._buffers.fill(codes.numpy(), history.numpy()[:, 0])
        graph.replay()
        self._replayed.record(self._stream)
        return graph.outputs(len(codes))

    def _in_parts(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        rows, frames = codes.shape[:2]
        samples_per_frame = self.config.samples_per_frame
        device = self._buffers.state.device
        waveform = torch.empty(rows, frames * samples_per_frame, dtype=torch.float32, device=device)
        state_out = torch.empty(state.shape, dtype=self._buffers.state.dtype, device=device)
        for start, stop in self._buckets.spans(frames):
            samples = slice(start * samples_per_frame, stop * samples_per_frame)
            valid = (history + start).clamp(max=self.config.window)
            part, states = codes[:, start:stop], state if start == 0 else state_out
            for first, last, bucket in self._buckets.groups(rows, stop - start):
                group = slice(first, last)
                graph = self._graphs[bucket, stop - start]
                group_waveform, next_states = self._replay(graph, part[group], states[group], valid[group])
                waveform[group, samples] = group_waveform
                state_out[group] = next_states
        return waveform, state_out


def _new_rows(step: Step) -> DeviceRows:
    like = step.weights.codebooks
    return DeviceRows(step.config.state_size, like.dtype, like.device, step.config.contract)


@torch.inference_mode()
def _advance(run: Run, step: Step, codes: np.ndarray, rows: DeviceRows, places: Places) -> Tensor:
    """GraphStepRunner.advance by any `run` of the step."""
    history = torch.from_numpy(places.history)[:, None]
    waveform, state_out = run(torch.from_numpy(codes), rows.gather(places), history)
    rows.scatter(places, state_out)
    return step.ops.to_int16(waveform).cpu()
