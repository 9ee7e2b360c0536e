"""The operations of a tick as fused CUDA kernels."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from qwen3_tts_engine.checkpoint.configs import TransformerConfig
from qwen3_tts_engine.core.batches import MILLION
from qwen3_tts_engine.talker.kernels import prompt_attention, rowwise, text_position
from qwen3_tts_engine.talker.kernels.cuda_module import CudaKernel
from qwen3_tts_engine.talker.kernels.kernel_path import KernelPath
from qwen3_tts_engine.talker.kernels.linear import LANES, by_rows, carveout
from qwen3_tts_engine.talker.kv_cache import FrameCache, PagedCache
from qwen3_tts_engine.talker.ops.interface import Attention, Hidden
from qwen3_tts_engine.talker.ops.products import Products, norms_itself
from qwen3_tts_engine.talker.side_stream import SideStream
from qwen3_tts_engine.talker.slot_state import SlotState
from qwen3_tts_engine.talker.text_tracker import FLOOR, TextTracker
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear

# Warps of a block of paged_attention, by blocks per key head, beyond these one: of frames alone the number with which
# a tick was fastest (one H200, prompts of 60 rows), often that with which all blocks, or whole rounds of them, run at
# once; beside prompts more than four would leave no registers to the next kernel.
FRAMES_WARPS = {16: 8, 24: 4, 32: 3, 48: 4, 64: 3, 96: 2, 128: 3, 192: 1, 256: 2}
PROMPTS_WARPS = {48: 4, 640: 2}
# Prompt rows per such block.
ATTENTION_QUERIES = 8
# The most rows of prompts alone for which paged_attention, whose blocks prepare all keys that they read, is as fast as
# prompt_attention after a store of all keys. Beside frames, which take longer, it hides them.
UNTILED_PROMPTS = 256
# The largest number of rows whose norm frame_attention computes.
FRAME_NORM_ROWS = 640
# Warps of a block in batch-invariant mode.
INVARIANT_WARPS = 4
# Warps of a block of frame_attention, by rows, beyond these four; of a multiprocessor, TIGHT if all then run at once.
FRAME_WARPS, ROOMY_WARPS, TIGHT_WARPS = {128: 2}, 12, 16
GATE_BLOCK, MAX_DRAW_THREADS = 1024, 256
# Attends for products of queries, keys and values, with what the kernels take of the cache and their last arguments.
PagedLaunch = Callable[[Tensor, LayerWeights, Any, Tensor, Any], None]


class KernelOps:
    def __init__(self, device: torch.device, path: KernelPath, *, batch_invariant: bool = False) -> None:
        """`batch_invariant` makes a row's arithmetic independent of the number of rows, at a cost in speed."""
        self._batch_invariant = batch_invariant
        self._products = Products(device, path, batch_invariant=batch_invariant)
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._overlaps = path.overlaps
        self._launch = {"PDL": path.overlaps, "launch_pdl": path.overlaps}
        self._beside = SideStream(device)

    def fold(self, norm: Tensor, weight: Tensor) -> NormLinear:
        return NormLinear(None, (weight.float() * norm.float()).to(weight.dtype))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._products.multiply(x, weight, bias)

    def rms_norm(self, x: Tensor, norm: Tensor | None, eps: float, out: Tensor | None = None) -> Tensor:
        out = torch.empty_like(x) if out is None else out
        width = x.shape[1]
        strides = (x.stride(0), out.stride(0))
        block = triton.next_power_of_2(width)
        rowwise.rms_norm_kernel[(len(x),)](x, norm, out, *strides, eps, WIDTH=width, BLOCK=block, **self._launch)
        return out

    def norm_linear(
        self, x: Hidden, product: NormLinear, eps: float, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        weight, rows = product.weight, x.rows
        made = rows.new_empty(len(rows), len(weight)) if out is None else out
        if self._norm_product(x, weight, made, eps, bias, BIAS=int(bias is not None)):
            return made
        value = torch.nn.functional.linear(self.rms_norm(rows, None, eps), weight, bias)
        return value if out is None else out.copy_(value)

    def norm_logits(self, x: Hidden, product: NormLinear, eps: float) -> Tensor:
        weight, rows = product.weight, x.rows
        out = rows.new_empty(len(rows), len(weight), dtype=torch.float32)
        if self._norm_product(x, weight, out, eps, FLOAT_OUT=1):
            return out
        return torch.mm(self.rms_norm(rows, None, eps), weight.T, out_dtype=torch.float32)

    def norm_gated(self, x: Hidden, gate_up: NormLinear, eps: float) -> Tensor:
        weight, rows = gate_up.weight, x.rows
        width = len(weight) // 2
        out = rows.new_empty(len(rows), width)
        if self._norm_product(x, weight, out, eps, GATED=1):
            return out
        both = torch.mm(rows, weight.T)
        grid, inputs = (len(rows), triton.cdiv(width, GATE_BLOCK)), rows.shape[1]
        sizes = {"INPUTS": inputs, "X_BLOCK": triton.next_power_of_2(inputs), "WIDTH": width, "BLOCK": GATE_BLOCK}
        rowwise.gate_kernel[grid](rows, both, out, rows.stride(0), eps, **sizes, **self._launch)
        return out

    def add_linear(self, residual: Hidden, x: Tensor, weight: Tensor) -> None:
        self._products.add(residual, x, weight)

    def embed(self, table: Tensor, indices: Tensor) -> Tensor:
        rows, terms = indices.shape
        width = table.shape[1]
        out = table.new_empty(rows, width)
        block = triton.next_power_of_2(width)
        rowwise.embed_kernel[(rows,)](table, indices, out, len(table) - 1, TERMS=terms, WIDTH=width, BLOCK=block)
        return out

    def paged_attention(
        self,
        cache: PagedCache,
        slots: Tensor,
        positions: Tensor,
        *,
        prompts: int = 0,
        tracking: "KernelTracking | None" = None,
    ) -> Attention:
        config, rows = cache.config, len(slots)
        sizes = _heads(config) | {"PAGE": cache.page_size}
        in_tiles = prompts == rows > UNTILED_PROMPTS and not self._batch_invariant
        launch = self._prompts_in_tiles(sizes) if in_tiles else self._paged_blocks(sizes, rows - prompts, prompts)
        where, eps = (cache.page_table, slots, positions), config.rms_norm_eps
        numbers = (cache.page_table.stride(0), eps, config.head_dim**-0.5)

        def attend(layer: int, hidden: Hidden, weights: LayerWeights) -> Tensor:
            qkv = self.norm_linear(hidden, weights.qkv, eps)
            out = qkv.new_empty(rows, config.query_size)
            launch(qkv, weights, (cache.cos, cache.sin, *cache.data[layer], *where), out, numbers)
            if tracking:
                tracking.observe(layer, qkv, weights)
            return out

        return attend

    def tracking(
        self, tracker: TextTracker, state: SlotState, cache: PagedCache, slots: Tensor, positions: Tensor
    ) -> "KernelTracking":
        return KernelTracking(tracker, state, cache, slots, positions, self._beside)

    def frame_attention(self, cache: FrameCache, start: int, count: int) -> Attention:
        config, key_heads = cache.config, cache.config.num_key_value_heads
        eps, scale = config.rms_norm_eps, config.head_dim**-0.5
        sizes = _heads(config) | {"POSITIONS": cache.data.shape[3], "COUNT": count}

        def attend(layer: int, hidden: Hidden, weights: LayerWeights) -> Tensor:
            qkv, inputs = self._frame_qkv(hidden, weights.qkv, eps)
            out, rows = qkv.new_empty(len(qkv), config.query_size), len(qkv) // count
            warps, busy = by_rows(FRAME_WARPS, rows, 4), rows * key_heads / self._multiprocessors
            resident = TIGHT_WARPS if ROOMY_WARPS < busy <= TIGHT_WARPS else ROOMY_WARPS
            macros = sizes | {"INPUTS": inputs, "WARPS": warps, "RESIDENT": resident // warps}
            kernel = self._kernel("attention.cu", "frame_attention", LANES * warps, self._carveout(len(qkv)), **macros)
            memory = (weights.q_norm, weights.k_norm, cache.cos, cache.sin, *cache.data[layer], out)
            blocks = triton.cdiv(rows * key_heads, warps)
            kernel((blocks, 1), hidden.rows, qkv, *memory, hidden.rows.stride(0), rows, start, eps, scale)
            return out

        return attend

    def rows(self, state: SlotState, slots: Tensor) -> "KernelRows":
        return KernelRows(state, slots, self._launch, self._carveout(len(slots)))

    def _kernel(self, source: str, function: str, threads: int, share: int | None = None, **macros: int) -> CudaKernel:
        return _kernel(source, function, threads, share, self._overlaps, **macros)

    def _carveout(self, rows: int) -> int | None:
        return None if self._batch_invariant else carveout(rows)

    def _paged_blocks(self, sizes: dict[str, int], frames: int, prompts: int) -> PagedLaunch:
        blocks = frames + triton.cdiv(prompts, ATTENTION_QUERIES // sizes["GROUP"])
        fastest = by_rows(PROMPTS_WARPS if prompts else FRAMES_WARPS, blocks, 1)
        warps = INVARIANT_WARPS if self._batch_invariant else fastest
        macros = {"COUNT": 1, "PROMPTS": int(prompts > 0), "WARPS": warps}
        share = self._carveout(frames + prompts)
        kernel = self._kernel("attention.cu", "paged_attention", LANES * warps, share, **sizes, **macros)

        def launch(qkv: Tensor, weights: LayerWeights, memory: Any, out: Tensor, numbers: Any) -> None:
            norms = (weights.q_norm, weights.k_norm)
            kernel((sizes["KV_HEADS"], blocks), qkv, *norms, *memory, out, frames, frames + prompts, *numbers)

        return launch

    def _prompts_in_tiles(self, sizes: dict[str, int]) -> PagedLaunch:
        """The launch for rows of prompts alone."""
        heads = sizes["KV_HEADS"]
        store = self._kernel("attention.cu", "store_keys", max(LANES, 4 * heads), **sizes, COUNT=1, PROMPTS=1, WARPS=1)
        tile = {"QUERIES": prompt_attention.QUERIES, "KEYS": prompt_attention.KEYS, "num_warps": prompt_attention.WARPS}

        def launch(qkv: Tensor, weights: LayerWeights, memory: Any, out: Tensor, numbers: Any) -> None:
            store((len(qkv), 1), qkv, weights.k_norm, *memory, *numbers[:2])
            grid = (prompt_attention.programs(len(qkv), sizes["GROUP"]), heads)
            prompt_attention.prompt_attention_kernel[grid](
                qkv, weights.q_norm, *memory, out, len(qkv), *numbers, **sizes, **tile, **self._launch
            )

        return launch

    def _frame_qkv(self, hidden: Hidden, product: NormLinear, eps: float) -> tuple[Tensor, int]:
        """Queries, keys and values, and INPUTS of frame_attention, which norms them where no product can.

        paged_attention does not, nor frame_attention for many rows: blocks of a row each read all of `x` (1 % slower).
        """
        rows = hidden.rows
        form = self._products.form(len(rows), product.weight, NORM=1)
        if (form is not None and norms_itself(form, hidden)) or len(rows) > FRAME_NORM_ROWS:
            return self.norm_linear(hidden, product, eps), 0
        return self._products.multiply(rows, product.weight), rows.shape[1]

    def _norm_product(
        self, x: Hidden, weight: Tensor, out: Tensor, eps: float, bias: Tensor | None = None, **flags: int
    ) -> bool:
        """RMSNorm and the product, unless cuBLAS is faster: then nothing, and False."""
        rows, form = x.rows, self._products.form(len(x.rows), weight, NORM=1, **flags)
        if form is None:
            return False
        if not norms_itself(form, x):
            rows, form = self.rms_norm(rows, None, eps), replace(form, NORM=0)
        self._products.run(form, rows, weight, out, squares=x.squares, bias=bias, eps=eps)
        return True


class KernelRows:
    """interface.Rows; the kernels look up the slots."""

    def __init__(self, state: SlotState, slots: Tensor, launch: dict[str, bool], carveout: int | None) -> None:
        self.slots = slots
        self.hidden = state.input.index_select(0, slots)
        self.positions = state.position.index_select(0, slots)
        self.codes = slots.new_empty(len(slots), state.num_codebooks)
        self._state = state
        self._launch = launch
        self._carveout = carveout

    def draw_first(self, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        self.draw(0, logits, inputs, out)

    def draw(self, codebook: int, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        state = self._state
        sizes = {"VOCABULARY": logits.shape[1], "CODES": state.seen.shape[1], "CODEBOOKS": state.num_codebooks}
        threads = _draw_threads(logits.shape[1])
        macros = sizes | {"WIDTH": inputs.shape[1], "FIRST": int(codebook == 0), "THREADS": threads}
        fields = (state.seed, state.frame, state.options, state.seen)
        numbers = (codebook, state.frame.stride(0), out.stride(0), state.eos)
        kernel = _kernel("draw.cu", "draw", threads, self._carveout, self._launch["PDL"], **macros)
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


class KernelTracking:
    """interface.Tracking, beside the layers; rows of slots without word times cost an empty program each."""

    def __init__(
        self,
        tracker: TextTracker,
        state: SlotState,
        cache: PagedCache,
        slots: Tensor,
        positions: Tensor,
        beside: SideStream,
    ) -> None:
        self._tracker, self._state, self._cache = tracker, state, cache
        self._slots, self._positions, self._beside = slots, positions, beside
        shape = (len(slots), len(tracker.heads), tracker.max_tokens)
        self._scores = torch.empty(shape, dtype=torch.float32, device=slots.device)

    def observe(self, layer: int, qkv: Tensor, weights: LayerWeights) -> None:
        """Products of a layer for queries, keys and values, [rows or more, ...]; its keys are stored."""
        if (heads := self._tracker.layers.get(layer)) is None:
            return
        with self._beside.forked(qkv):
            self._score(heads, qkv, weights, self._cache.data[layer, 0])
            if layer == max(self._tracker.layers):
                self._move()

    def finish(self) -> None:
        self._beside.join()

    def _score(self, heads: Tensor, qkv: Tensor, weights: LayerWeights, keys: Tensor) -> None:
        cache, state, config = self._cache, self._state, self._cache.config
        memory = (weights.q_norm, cache.cos, cache.sin, keys, cache.page_table)
        rows = (self._slots, self._positions, state.text, heads, self._scores)
        numbers = (qkv.stride(0), cache.page_table.stride(0), state.frame.stride(0), self._tracker.max_tokens)
        text_position.text_scores_kernel[(len(self._slots), len(heads))](
            qkv, *memory, *rows, *numbers, config.rms_norm_eps, config.head_dim**-0.5,
            **_heads(config), PAGE=cache.page_size, NUM_HEADS=len(self._tracker.heads), BLOCK=text_position.TOKENS,
        )  # fmt: skip

    def _move(self) -> None:
        tracker, state = self._tracker, self._state
        fields = (self._slots, self._positions, state.text, state.spoken)
        block = triton.next_power_of_2(tracker.max_tokens)
        text_position.text_position_kernel[(len(self._slots),)](
            self._scores, *fields, tracker.shares, tracker.moves, tracker.probability, state.frame.stride(0),
            tracker.max_tokens, FLOOR, MILLION, NUM_HEADS=len(tracker.heads), STEPS=tracker.moves.shape[1], BLOCK=block,
            num_warps=text_position.POSITION_WARPS,
        )  # fmt: skip


def _draw_threads(vocabulary: int) -> int:
    """The most that can each have the same number of logits, in vectors of four. Raises ValueError if none can."""
    whole = [threads for threads in range(LANES, MAX_DRAW_THREADS + 1, LANES) if vocabulary % (4 * threads) == 0]
    if not whole:
        raise ValueError(f"the GPU kernels require a vocabulary that is a multiple of {4 * LANES}, not {vocabulary}")
    return whole[-1]


@cache
def _kernel(source: str, function: str, threads: int, share: int | None, overlaps: bool, **macros: int) -> CudaKernel:
    """`share` is the carveout."""
    return CudaKernel(source, function, macros, threads, carveout=share, overlaps=overlaps)


def _heads(config: TransformerConfig) -> dict[str, Any]:
    key_heads = config.num_key_value_heads
    return {"GROUP": config.num_attention_heads // key_heads, "KV_HEADS": key_heads, "D": config.head_dim}
