"""The operations of the step as fused kernels."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
from torch import Tensor

from code2wav_step.config import KEYS, VALUES, StepConfig
from code2wav_step.kernels import attention, hopper, places, product, resident_unit, rowwise, unit
from code2wav_step.kernels.cuda_form import CudaForm, compile_form, cuda_kernel
from code2wav_step.kernels.hopper import CudaLaunch
from code2wav_step.ops import Sequences
from code2wav_step.tiles import H200_SHARED_BYTES, product_tile, unit_tile
from code2wav_step.torch_ops import rotation
from code2wav_step.weights import LAYER_NORM_EPS, Depthwise, Product, Unit

# The smallest dimension of a matrix product in a kernel.
MIN_DIMENSION = 32
# Units with this many channels run as one kernel: their second matrix fits beside the first result.
FUSED_CHANNELS = (96, 192)
HISTORY_CHANNELS = 128
ROW_WARPS = 4
# With four warps, ptxas 12.8 multiplies the values by an undefined descriptor.
ATTENTION_WARPS = 8
# Input rows of a program.
LAST_ROWS = 64
PCM_BLOCK, PCM_WARPS = 2048, 8


class KernelError(RuntimeError):
    """The kernels do not support this codec; the message says why."""


def shared_bytes(device: torch.device) -> int:
    """Shared memory per block of `device`; on a CPU, of the current GPU, for which launches are recorded there."""
    if not torch.cuda.is_available():
        return H200_SHARED_BYTES
    gpu: Any = torch.cuda.get_device_properties(device if device.type == "cuda" else None)
    return int(gpu.shared_memory_per_block_optin)


class KernelOps:
    """Plans are made on the first run of a shape, so every shape must run once before its capture."""

    def __init__(self, config: StepConfig, device: torch.device) -> None:
        channels = [shape[0] for name, shape in config.layout if name not in (KEYS, VALUES)]
        if any(count % MIN_DIMENSION for count in channels) or config.head_dim % (2 * MIN_DIMENSION):
            raise KernelError(
                f"channels {sorted(set(channels))}, heads of {config.head_dim}: not multiples of 32 and 64"
            )
        self._config, self._pieces = config, config.pieces
        self._cosine, self._sine = rotation(config, device)
        self._fast = device.type == "cuda"
        # Multiprocessors of the GPU that runs the resident kernels; none elsewhere.
        self._processors = resident_unit.processors()
        self._shared_bytes = shared_bytes(device)
        # Forms that a build has met; None while kernels are launched, not built.
        self._forms: set[CudaForm] | None = None
        self._plans: dict[tuple[int, int], Tensor] = {}
        self._addresses: tuple[Tensor | None, Tensor | None] = (None, None)

    def address_states(self, addresses: Tensor) -> bool:
        self._addresses = (addresses[0], addresses[1])
        return True

    def next_state(self, state: Tensor) -> Tensor:
        return torch.empty_like(state) if self._addresses[1] is None else state

    def build(self, run: Callable[[], object]) -> None:
        """Compiles the kernels that `run` would launch, in parallel."""
        with ThreadPoolExecutor(os.cpu_count()) as executor, triton.AsyncCompileMode(executor):
            forms: set[CudaForm] = set()
            self._forms = forms
            try:
                run()
            finally:
                self._forms = None
            list(executor.map(compile_form, forms))

    def open(self, state: Tensor, frames: int) -> Sequences:
        batch, sequences, offset = len(state), {}, 0
        shapes = {name: self._sequence_shape(name, frames) for name in self._config.positions}
        self._arena: Tensor | None = None  # frees that of the last call first
        self._arena = state.new_empty(batch * sum(length * channels for length, channels in shapes.values()))
        for name, (length, channels) in shapes.items():
            size = batch * length * channels
            sequences[name] = self._arena[offset : offset + size].view(batch, length, channels)
            offset += size
        self._move(state, batch, frames, close=False)
        return sequences

    def close(self, sequences: Sequences, state_out: Tensor) -> None:
        frames = sequences["pre_conv"].shape[1] - self._pieces["pre_conv"].shape[1]
        self._move(state_out, len(state_out), frames, close=True)

    def embed(self, codes: Tensor, table: Tensor, out: Tensor) -> None:
        batch, frames, quantizers = codes.shape
        channels = table.shape[1]
        self._launch(
            rowwise.embed_kernel, (batch * frames,),
            codes, table, out, frames, out.stride(0), QUANTIZERS=quantizers, CODES=self._config.codebook_size,
            CHANNELS=channels, BLOCK=triton.next_power_of_2(channels), num_warps=ROW_WARPS,
        )  # fmt: skip

    def product(
        self,
        x: Tensor,
        layer: Product,
        *,
        residual: Tensor | None = None,
        out: Tensor | None = None,
        active: Tensor | None = None,
    ) -> Tensor:
        batch, length, channels = x.shape
        positions = length - (layer.taps - 1) * layer.dilation
        if out is None and active is None:
            out = x.new_empty(batch, positions, layer.outputs)
        rows = batch * positions
        result = active if out is None else out
        assert result is not None
        if self._processors and (launch := hopper.product_launch(x, layer, residual, out, active, self._processors)):
            self._launch_cuda(launch)
            return result
        is_gated, width = layer.activation == "gated", layer.weight.shape[1]
        tile = product_tile(
            rows, layer.outputs, channels, width, matrices=1 + is_gated, shared_bytes=self._shared_bytes
        )
        self._launch(
            product.product_kernel, (tile.programs(rows, layer.outputs),),
            x, layer.weight, layer.bias, residual, layer.alpha, layer.inverse_beta, out, active,
            rows, positions, width, x.stride(0), *hopper.strides(residual, out, active),
            layer.norm_eps or 0.0,
            OUTPUTS=layer.outputs, CHANNELS=channels, DILATION=layer.dilation,
            NORM=layer.norm_eps is not None, GATED=is_gated, GELU=layer.activation == "gelu",
            FAST=self._fast, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth,
            **tile.launch,
        )  # fmt: skip
        return result

    def attend(self, qkv: Tensor, layer: int, state: Tensor, history: Tensor, state_out: Tensor) -> Tensor:
        config = self._config
        batch, frames, width = qkv.shape
        out = qkv.new_empty(batch, frames, width // 3)
        window = config.window * config.num_heads * config.head_dim
        offsets = (self._pieces[name].offset + layer * window for name in (KEYS, VALUES))
        self._launch(
            attention.attention_kernel, (config.num_heads, batch),
            qkv, state, state_out, *self._addresses, history, self._cosine, self._sine, out,
            *offsets, frames, state.shape[1], config.head_dim**-0.5,
            WINDOW=config.window, HEADS=config.num_heads, HALF=config.head_dim // 2,
            BLOCK_T=max(16, triton.next_power_of_2(frames)), BLOCK_S=triton.next_power_of_2(config.slots),
            num_warps=ATTENTION_WARPS,
        )  # fmt: skip
        return out

    def depthwise(self, x: Tensor, layer: Depthwise) -> Tensor:
        taps, channels = layer.weight.shape
        batch, positions = len(x), x.shape[1] - taps + 1
        out = x.new_empty(batch, positions, channels)
        self._launch(
            rowwise.depthwise_kernel, (batch * positions,),
            x, layer.weight, layer.bias, out, positions, x.stride(0), LAYER_NORM_EPS,
            CHANNELS=channels, TAPS=taps, BLOCK=triton.next_power_of_2(channels), num_warps=ROW_WARPS,
        )  # fmt: skip
        return out

    def unit(self, x: Tensor, unit_: Unit, residual: Tensor, out: Tensor | None, active: Tensor) -> None:
        batch, positions, channels = residual.shape
        rows, conv, pointwise = batch * positions, unit_.conv, unit_.pointwise
        if self._processors and (launch := hopper.unit_launch(x, unit_, residual, out, active, self._processors)):
            self._launch_cuda(launch)
            return
        # Where streamed_product.cu does not compute the whole unit, its products are still faster than unit.py.
        if self._processors or channels not in FUSED_CHANNELS:
            inner = torch.empty_like(residual)
            self.product(x, conv, active=inner)
            self.product(inner, pointwise, residual=residual, out=out, active=active)
            return
        tile = unit_tile(rows, channels)
        self._launch(
            unit.unit_kernel, (tile.programs(rows, channels),),
            x, conv.weight, conv.bias, conv.alpha, conv.inverse_beta,
            pointwise.weight, pointwise.bias, pointwise.alpha, pointwise.inverse_beta, residual, out, active,
            rows, positions, conv.weight.shape[1], x.stride(0), active.stride(0),
            CHANNELS=channels, DILATION=conv.dilation, FAST=self._fast,
            BLOCK_M=tile.rows, BLOCK_K=tile.depth, **tile.launch,
        )  # fmt: skip

    def last(self, x: Tensor, layer: Depthwise) -> Tensor:
        taps, channels = layer.weight.shape
        batch, positions = len(x), x.shape[1] - taps + 1
        out = torch.empty(batch, positions, dtype=torch.float32, device=x.device)
        self._launch(
            rowwise.last_kernel, (triton.cdiv(positions, LAST_ROWS - taps + 1), batch),
            x, layer.weight, layer.bias, out, positions, x.stride(0), CHANNELS=channels, TAPS=taps,
            COLUMNS=triton.next_power_of_2(taps), BLOCK=triton.next_power_of_2(channels), BLOCK_M=LAST_ROWS,
            num_warps=ROW_WARPS,
        )  # fmt: skip
        return out

    def open_rows(self, given: Tensor, addresses: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Addresses the states (address_states) of places int32 [B, 4] with the tables of kernels.places.

        Returns the histories int32 [B, 1] and marks int32 [B] of denied entries, for to_int16.
        """
        batch, contract = len(given), self._config.contract
        # Each line begins at a multiple of 16 bytes.
        states = torch.empty(2, batch + batch % 2, dtype=torch.int64, device=given.device)
        history, denied = (torch.empty(batch, dtype=torch.int32, device=given.device) for _ in range(2))
        self._launch(
            places.open_kernel, (batch,),
            given, addresses, keys, states[0], states[1], history, denied, self._config.window,
            NUM_ROWS=contract.num_rows, NUM_OWNED=contract.num_rows - contract.public_rows, num_warps=1,
        )  # fmt: skip
        self.address_states(states)
        return history[:, None], denied

    def to_int16(self, waveform: Tensor, denied: Tensor | None = None) -> Tensor:
        """Also marks the rows that open_rows `denied`, as pcm.mark_denied does."""
        contract, pcm = self._config.contract, torch.empty_like(waveform, dtype=torch.int16)
        self._launch(
            rowwise.pcm_kernel, (len(waveform),),
            waveform, denied, pcm, waveform.shape[1],
            SCALE=contract.pcm_scale, NO_SAMPLE=contract.no_sample, BLOCK=PCM_BLOCK, num_warps=PCM_WARPS,
        )  # fmt: skip
        return pcm

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        if self._forms is None:
            kernel[grid](*arguments, **options)
        else:
            kernel.warmup(*arguments, grid=grid, **options)

    def _launch_cuda(self, launch: CudaLaunch) -> None:
        if self._forms is None:
            cuda_kernel(launch.form)((launch.blocks, 1), *launch.arguments)
        else:
            self._forms.add(launch.form)

    def _sequence_shape(self, name: str, frames: int) -> tuple[int, int]:
        channels, past = self._pieces[name].shape
        return past + self._config.positions[name] * frames, channels

    def _move(self, state: Tensor, batch: int, frames: int, *, close: bool) -> None:
        plan = self._plans.get((batch, frames))
        if plan is None:
            plan = torch.tensor(self._plan(batch, frames), device=self._cosine.device)
            self._plans[batch, frames] = plan
        self._launch(
            rowwise.history_kernel, (len(plan), batch),
            state, self._addresses[close], self._arena, plan, state.shape[1],
            CLOSE=close, CHANNELS=HISTORY_CHANNELS, num_warps=ROW_WARPS,
        )  # fmt: skip

    def _plan(self, batch: int, frames: int) -> list[tuple[int, ...]]:
        """rowwise.history_kernel's plan."""
        lines: list[tuple[int, ...]] = []
        offset = 0
        for name, positions in self._config.positions.items():
            piece = self._pieces[name]
            length, channels = self._sequence_shape(name, frames)
            past = piece.shape[1]
            for channel in range(0, channels, HISTORY_CHANNELS):
                begin = (piece.offset + channel * past, past, offset + channel)
                count = min(HISTORY_CHANNELS, channels - channel)
                lines.append((*begin, length * channels, channels, positions * frames, count))
            offset += batch * length * channels
        return lines
