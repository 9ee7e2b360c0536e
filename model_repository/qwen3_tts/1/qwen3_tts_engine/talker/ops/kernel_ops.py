"""The operations of a tick as fused CUDA kernels."""

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from qwen3_tts_engine.checkpoint.configs import TransformerConfig
from qwen3_tts_engine.talker.kernels import prompt_attention, rowwise
from qwen3_tts_engine.talker.kernels.cluster_linear import ClusterLinear, cluster_linear, divides
from qwen3_tts_engine.talker.kernels.cuda_module import HOPPER, CudaKernel
from qwen3_tts_engine.talker.kernels.skinny_linear import LANES, SkinnyLinear
from qwen3_tts_engine.talker.kv_cache import FrameCache, PagedCache
from qwen3_tts_engine.talker.ops.interface import Attention
from qwen3_tts_engine.talker.slot_state import SlotState
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear

# By number of rows: the largest weight, in elements, for which skinny_linear beats cuBLAS (measured on an H200).
SKINNY = {16: 1 << 40, 32: 10_000_000, 64: 5_000_000}
# The same for cluster_linear, which requires Hopper (scripts/benchmarks/products/README.md).
CLUSTER = {16: 0, 32: 1 << 40, 64: 7_000_000}
# Warps of a paged attention block, by number of rows: few rows leave multiprocessors idle, so each gets more warps; of
# many rows all blocks should be resident at once (measured on an H200: 64 rows 2 % of a tick faster with 2 than 4).
ATTENTION_WARPS = {16: 8, 48: 4, 640: 2, 1 << 40: 1}
# The largest number of rows whose norm frame_attention computes.
FRAME_NORM_ROWS = 640
# Fixed launch shape in batch-invariant mode. 8 rows per block would read the weights twice as often for many rows.
INVARIANT_HALVES, INVARIANT_WARPS = 2, 4
FRAME_WARPS, MAX_DRAW_THREADS = 4, 256
GATE_BLOCK = 1024


class KernelOps:
    def __init__(self, device: torch.device, *, batch_invariant: bool = False) -> None:
        """`batch_invariant` makes a row's arithmetic independent of the number of rows, at a cost in speed."""
        self._batch_invariant = batch_invariant
        major, _ = torch.cuda.get_device_capability(device)
        self._has_clusters = major == HOPPER and not batch_invariant
        overlap = major >= HOPPER
        self._launch = {"PDL": overlap, "launch_pdl": overlap}

    def fold(self, norm: Tensor, weight: Tensor) -> NormLinear:
        return NormLinear(None, (weight.float() * norm.float()).to(weight.dtype))

    def rms_norm(self, x: Tensor, norm: Tensor | None, eps: float, out: Tensor | None = None) -> Tensor:
        out = torch.empty_like(x) if out is None else out
        width = x.shape[1]
        strides = (x.stride(0), out.stride(0))
        block = triton.next_power_of_2(width)
        rowwise.rms_norm_kernel[(len(x),)](x, norm, out, *strides, eps, WIDTH=width, BLOCK=block, **self._launch)
        return out

    def norm_linear(
        self, x: Tensor, product: NormLinear, eps: float, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        weight = product.weight
        form = self._form(x, weight, NORM=1, BIAS=int(bias is not None))
        if form is None:
            value = torch.nn.functional.linear(self.rms_norm(x, None, eps), weight, bias)
            return value if out is None else out.copy_(value)
        out = x.new_empty(len(x), len(weight)) if out is None else out
        return self._multiply(form, x, weight, out, bias, eps)

    def norm_logits(self, x: Tensor, product: NormLinear, eps: float) -> Tensor:
        weight = product.weight
        form = self._form(x, weight, NORM=1, FLOAT_OUT=1)
        if form is None:
            return torch.mm(self.rms_norm(x, None, eps), weight.T, out_dtype=torch.float32)
        return self._multiply(form, x, weight, x.new_empty(len(x), len(weight), dtype=torch.float32), None, eps)

    def norm_gated(self, x: Tensor, gate_up: NormLinear, eps: float) -> Tensor:
        width = len(gate_up.weight) // 2
        out = x.new_empty(len(x), width)
        form = self._form(x, gate_up.weight, NORM=1, GATED=1)
        if form is not None:
            return self._multiply(form, x, gate_up.weight, out, None, eps)
        both = torch.mm(x, gate_up.weight.T)
        grid, inputs = (len(x), triton.cdiv(width, GATE_BLOCK)), x.shape[1]
        sizes = {"INPUTS": inputs, "X_BLOCK": triton.next_power_of_2(inputs), "WIDTH": width, "BLOCK": GATE_BLOCK}
        rowwise.gate_kernel[grid](x, both, out, x.stride(0), eps, **sizes, **self._launch)
        return out

    def add_linear(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
        form = self._form(x, weight, RESIDUAL=1)
        if form is None:
            torch.addmm(residual, x, weight.T, out=residual)
        else:
            self._multiply(form, x, weight, residual, None, 0.0)

    def embed(self, table: Tensor, indices: Tensor) -> Tensor:
        rows, terms = indices.shape
        width = table.shape[1]
        out = table.new_empty(rows, width)
        block = triton.next_power_of_2(width)
        rowwise.embed_kernel[(rows,)](table, indices, out, len(table) - 1, TERMS=terms, WIDTH=width, BLOCK=block)
        return out

    def paged_attention(self, cache: PagedCache, slots: Tensor, positions: Tensor, *, prompts: int = 0) -> Attention:
        config, key_heads, frames = cache.config, cache.config.num_key_value_heads, len(slots) - prompts
        heads = _heads(config)
        warps = self._attention_warps(frames)
        macros = heads | {"PAGE": cache.page_size, "COUNT": 1, "WARPS": warps}
        frame_kernel = _kernel("attention.cu", "paged_attention", LANES * warps, **macros)
        store_kernel = _kernel("attention.cu", "store_keys", max(LANES, 4 * key_heads), **macros)
        where = (cache.page_table, slots[:frames], positions[:frames])
        prompt_rows = (cache.page_table, slots[frames:], positions[frames:])
        stride, eps, scale = cache.page_table.stride(0), config.rms_norm_eps, config.head_dim**-0.5
        tile = {"QUERIES": prompt_attention.QUERIES, "KEYS": prompt_attention.KEYS, "num_warps": prompt_attention.WARPS}

        def attend(layer: int, hidden: Tensor, weights: LayerWeights) -> Tensor:
            qkv = self.norm_linear(hidden, weights.qkv, eps)
            memory = (cache.cos, cache.sin, *cache.data[layer])
            out = qkv.new_empty(len(qkv), config.query_size)
            if frames:
                norms = (weights.q_norm, weights.k_norm)
                frame_kernel((frames, key_heads), qkv, *norms, *memory, *where, out, stride, eps, scale)
            if prompts:
                own, grid = qkv[frames:], (prompt_attention.programs(prompts, heads["GROUP"]), key_heads)
                store_kernel((prompts, 1), own, weights.k_norm, *memory, *prompt_rows, stride, eps)
                prompt_attention.prompt_attention_kernel[grid](
                    own, weights.q_norm, *memory, *prompt_rows, out[frames:], prompts, stride, eps, scale,
                    **heads, PAGE=cache.page_size, **tile, **self._launch,
                )  # fmt: skip
            return out

        return attend

    def frame_attention(self, cache: FrameCache, start: int, count: int) -> Attention:
        config, key_heads = cache.config, cache.config.num_key_value_heads
        eps, scale = config.rms_norm_eps, config.head_dim**-0.5
        macros = _heads(config) | {"POSITIONS": cache.data.shape[3], "COUNT": count, "WARPS": FRAME_WARPS}

        def attend(layer: int, hidden: Tensor, weights: LayerWeights) -> Tensor:
            qkv, inputs = self._frame_qkv(hidden, weights.qkv, eps)
            kernel = _kernel("attention.cu", "frame_attention", LANES * FRAME_WARPS, **macros, INPUTS=inputs)
            out, rows = qkv.new_empty(len(qkv), config.query_size), len(qkv) // count
            memory = (weights.q_norm, weights.k_norm, cache.cos, cache.sin, *cache.data[layer], out)
            grid = (triton.cdiv(rows * key_heads, FRAME_WARPS), 1)
            kernel(grid, hidden, qkv, *memory, hidden.stride(0), rows, start, eps, scale)
            return out

        return attend

    def rows(self, state: SlotState, slots: Tensor) -> "KernelRows":
        return KernelRows(state, slots, self._launch)

    def _frame_qkv(self, x: Tensor, product: NormLinear, eps: float) -> tuple[Tensor, int]:
        """Queries, keys and values, and INPUTS of frame_attention, which norms what cuBLAS multiplied: one kernel less.

        paged_attention does not, nor frame_attention for many rows: blocks of a row each read all of `x` (1 % slower).
        """
        if len(x) <= FRAME_NORM_ROWS and self._form(x, product.weight, NORM=1) is None:
            return torch.mm(x, product.weight.T), x.shape[1]
        return self.norm_linear(x, product, eps), 0

    def _form(self, x: Tensor, weight: Tensor, **flags: int) -> SkinnyLinear | ClusterLinear | None:
        """The kernel that is fastest for the product of these rows; None for cuBLAS."""
        rows, (height, inputs) = len(x), weight.shape
        outputs = height // (1 + flags.get("GATED", 0))
        if self._batch_invariant:
            return SkinnyLinear(outputs, inputs, INVARIANT_HALVES, **flags)
        gated, elements = bool(flags.get("GATED")), height * inputs
        if self._has_clusters and elements <= _by_rows(CLUSTER, rows) and divides(outputs, inputs, gated=gated):
            return cluster_linear(outputs, inputs, rows, **flags)
        if elements > _by_rows(SKINNY, rows):
            return None
        return SkinnyLinear(outputs, inputs, 1 if rows <= 8 else 2 if rows <= 16 else 4, **flags)

    def _multiply(
        self,
        form: SkinnyLinear | ClusterLinear,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        grid = (form.blocks, triton.cdiv(len(x), form.rows))
        _linear_kernel(form)(grid, x, weight, bias, out, len(x), x.stride(0), out.stride(0), eps)
        return out

    def _attention_warps(self, rows: int) -> int:
        if self._batch_invariant:
            return INVARIANT_WARPS
        return _by_rows(ATTENTION_WARPS, rows)


class KernelRows:
    """interface.Rows; the kernels look up the slots."""

    def __init__(self, state: SlotState, slots: Tensor, launch: dict[str, bool]) -> None:
        self.slots = slots
        self.hidden = state.input.index_select(0, slots)
        self.positions = state.position.index_select(0, slots)
        self.codes = slots.new_empty(len(slots), state.num_codebooks)
        self._state = state
        self._launch = launch

    def draw_first(self, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        self.draw(0, logits, inputs, out)

    def draw(self, codebook: int, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        state = self._state
        sizes = {"VOCABULARY": logits.shape[1], "CODES": state.seen.shape[1], "CODEBOOKS": state.num_codebooks}
        threads = _draw_threads(logits.shape[1])
        macros = sizes | {"WIDTH": inputs.shape[1], "FIRST": int(codebook == 0), "THREADS": threads}
        fields = (state.seed, state.frame, state.options, state.seen)
        numbers = (codebook, state.frame.stride(0), out.stride(0), state.eos)
        kernel = _kernel("draw.cu", "draw", threads, **macros)
        kernel((len(self.slots), 1), logits, self.slots, *fields, self.codes, inputs, out, *numbers)

    def advance(self, text_table: Tensor, code_table: Tensor, pad_text_id: int) -> None:
        state = self._state
        tables = (state.code_offsets, code_table, text_table)
        fields = (state.trailing, state.num_trailing, state.frame, state.position, state.input)
        strides = (state.frame.stride(0), state.trailing.shape[1])
        rowwise.advance_kernel[(len(self.slots),)](
            self.slots, self.codes, *tables, *fields, pad_text_id, *strides, state.padding_slot,
            CODEBOOKS=state.num_codebooks, WIDTH=state.input.shape[1], **self._launch,
        )  # fmt: skip


def _by_rows(values: dict[int, int], rows: int) -> int:
    """The value of the smallest number of rows that is not exceeded, 0 beyond the largest."""
    return next((value for max_rows, value in values.items() if rows <= max_rows), 0)


def _draw_threads(vocabulary: int) -> int:
    """As many as can each have the same number of logits, in vectors of four. Raises ValueError if none can."""
    whole = [threads for threads in range(LANES, MAX_DRAW_THREADS + 1, LANES) if vocabulary % (4 * threads) == 0]
    if not whole:
        raise ValueError(f"the GPU kernels require a vocabulary that is a multiple of {4 * LANES}, not {vocabulary}")
    return whole[-1]


@cache
def _kernel(source: str, function: str, threads: int, **macros: int) -> CudaKernel:
    return CudaKernel(source, function, macros, threads)


@cache
def _linear_kernel(form: SkinnyLinear | ClusterLinear) -> CudaKernel:
    return CudaKernel(form.source, form.function, form.macros, form.threads, form.shared_bytes, form.cluster)


def _heads(config: TransformerConfig) -> dict[str, Any]:
    key_heads = config.num_key_value_heads
    return {"GROUP": config.num_attention_heads // key_heads, "KV_HEADS": key_heads, "D": config.head_dim}
