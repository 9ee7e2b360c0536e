"""The operations of a tick in PyTorch, for the CPU and as the reference of the kernels.

On a CPU a row's arithmetic does not depend on rows of other streams, so that equal seeds give equal codes.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from qwen3_tts_engine.checkpoint.configs import TransformerConfig
from qwen3_tts_engine.talker import sampling
from qwen3_tts_engine.talker.kv_cache import FrameCache, PagedCache
from qwen3_tts_engine.talker.ops.interface import Attention, Hidden
from qwen3_tts_engine.talker.ops.torch_tracking import TorchTracking
from qwen3_tts_engine.talker.slot_state import SlotState
from qwen3_tts_engine.talker.text_tracker import TextTracker
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear

# Bounds the memory that a prefill gathers.
GATHER_ROWS = 64
# The CPU's BLAS sums in another order for fewer rows, or a remainder of fewer: of 4 with AVX2, of 16 with AVX-512. So
# rows of a tick are multiplied by a small weight one by one, which is faster for a few of them, and padded for a large
# one, which takes long to read; those of a prompt are padded for both.
PRODUCT_ROWS = 16
SMALL_WEIGHT = 1 << 19


class TorchOps:
    rows_at_once: int | None = None
    """Rows whose attention is computed together; None for one on a CPU, since mixed context lengths change rounding."""

    def fold(self, norm: Tensor, weight: Tensor) -> NormLinear:
        return NormLinear(norm, weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, together: bool = False) -> Tensor:
        """Every product of a tick."""
        return linear(x, weight, bias, together=together)

    def rms_norm(self, x: Tensor, norm: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        return _copy_to(rms_norm(x, norm, eps), out)

    def norm_linear(
        self, x: Hidden, product: NormLinear, eps: float, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        return _copy_to(norm_product(x, product, eps, bias, self.multiply), out)

    def norm_logits(self, x: Hidden, product: NormLinear, eps: float) -> Tensor:
        return norm_product(x, product, eps, multiply=self.multiply).float()

    def norm_gated(self, x: Hidden, gate_up: NormLinear, eps: float) -> Tensor:
        gate, up = norm_product(x, gate_up, eps, multiply=self.multiply).chunk(2, dim=-1)
        return F.silu(gate) * up

    def add_linear(self, residual: Hidden, x: Tensor, weight: Tensor) -> None:
        residual.rows += self.multiply(x, weight, together=residual.together)

    def embed(self, table: Tensor, indices: Tensor) -> Tensor:
        return table[indices].sum(1)

    def paged_attention(
        self,
        cache: PagedCache,
        slots: Tensor,
        positions: Tensor,
        *,
        prompts: int = 0,
        tracking: TorchTracking | None = None,
    ) -> Attention:
        written = cache.index(slots, positions)
        cos, sin = cache.cos[positions], cache.sin[positions]
        at_once = self.rows_at_once or (1 if slots.is_cpu else GATHER_ROWS)
        blocks = zip(slots.split(at_once), positions.split(at_once), strict=True)
        visible = [_visible_keys(cache, *block) for block in blocks]

        def attend(layer: int, hidden: Hidden, weights: LayerWeights) -> Tensor:
            qkv = norm_product(hidden, weights.qkv, cache.config.rms_norm_eps, multiply=self.multiply)
            query, key, value = split_heads(qkv, weights, cache.config, cos, sin)
            keys, values = cache.data[layer]
            keys[written], values[written] = key, value
            if tracking:
                tracking.observe(layer, query)
            blocks = zip(query.unsqueeze(1).split(at_once), visible, strict=True)
            return torch.cat([attend_grouped(rows, keys[index], values[index], mask) for rows, (index, mask) in blocks])

        return attend

    def frame_attention(self, cache: FrameCache, start: int, count: int) -> Attention:
        end = start + count
        cos, sin = cache.cos[start:end], cache.sin[start:end]
        # A single position attends to all cached ones; several attend causally.
        mask = None if count == 1 else torch.ones(1, count, end, dtype=torch.bool, device=cache.data.device).tril(start)
        # With several threads, rounding depends on the alignment of each thread's buffer.
        row_by_row = cache.data.is_cpu and torch.get_num_threads() > 1

        def attend(layer: int, hidden: Hidden, weights: LayerWeights) -> Tensor:
            qkv = norm_product(hidden, weights.qkv, cache.config.rms_norm_eps, multiply=self.multiply)
            query, key, value = split_heads(qkv.unflatten(0, (-1, count)), weights, cache.config, cos, sin)
            keys, values = cache.data[layer, :, : len(query), :end]
            keys[:, start:], values[:, start:] = key, value
            if not row_by_row:
                return attend_grouped(query, keys, values, mask)
            rows = zip(query.split(1), keys.split(1), values.split(1), strict=True)
            return torch.cat([attend_grouped(*row, mask) for row in rows])

        return attend

    def tracking(
        self, tracker: TextTracker, state: SlotState, cache: PagedCache, slots: Tensor, positions: Tensor
    ) -> TorchTracking:
        return TorchTracking(tracker, state, cache, slots, positions)

    def rows(self, state: SlotState, slots: Tensor) -> "TorchRows":
        return TorchRows(state, slots)


class TorchRows:
    """interface.Rows; gathers the inputs of all codebooks once."""

    def __init__(self, state: SlotState, slots: Tensor) -> None:
        self.slots = slots
        self.hidden = state.input[slots]
        self.positions = state.position[slots]
        self.codes = slots.new_empty(len(slots), state.num_codebooks)
        self._state = state
        self.frame = state.frame[slots]
        self.uniform = sampling.uniforms(state.seed[slots], self.frame, state.num_codebooks)
        options = state.options[slots].float().unbind(1)
        self.penalty = options[3]
        self.first = sampling.DrawParameters(options[0], options[1].long(), options[2])
        self.others = sampling.DrawParameters(options[4], options[5].long(), options[6])

    def draw_first(self, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        state = self._state
        masked = sampling.mask_first(logits, state.seen[self.slots], self.penalty, self.frame, state.eos)
        first = sampling.draw(masked, self.first, self.uniform[:, 0])
        self._mark(first)
        self._store(0, first, inputs, out)

    def draw(self, codebook: int, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        self._store(codebook, sampling.draw(logits, self.others, self.uniform[:, codebook]), inputs, out)

    def advance(self, text_table: Tensor, code_table: Tensor, pad_text_id: int) -> None:
        state, slots = self._state, self.slots
        fed = state.trailing[slots, self.frame.clamp(max=state.trailing.shape[1] - 1)]
        text = torch.where(self.frame < state.num_trailing[slots], fed, pad_text_id)
        codes = code_table[self.codes + state.code_offsets].sum(1)
        state.input[slots] = codes + text_table[text]
        state.frame[slots] += slots != state.padding_slot
        state.position[slots] += slots != state.padding_slot

    def _mark(self, first: Tensor) -> None:
        seen = self._state.seen
        seen[self.slots, first.clamp(max=seen.shape[1] - 1)] = True

    def _store(self, codebook: int, codes: Tensor, inputs: Tensor, out: Tensor) -> None:
        self.codes[:, codebook] = codes
        out.copy_(inputs[codes])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, together: bool = False) -> Tensor:
    """x @ weight.T + bias in the dtype of `x`; on a CPU row by row, or as a multiple of PRODUCT_ROWS rows."""
    weight = weight.to(x.dtype)
    if x.is_cpu and weight.numel() <= SMALL_WEIGHT and not together:
        return F.linear(x, weight, bias) if len(x) == 1 else torch.cat([F.linear(r, weight, bias) for r in x.split(1)])
    missing = -len(x) % PRODUCT_ROWS if x.is_cpu else 0
    if not missing:
        return F.linear(x, weight, bias)
    return F.linear(torch.cat((x, x[:1].expand(missing, -1))), weight, bias)[: len(x)]


def norm_product(
    x: Hidden,
    product: NormLinear,
    eps: float,
    bias: Tensor | None = None,
    multiply: Callable[..., Tensor] = linear,
) -> Tensor:
    assert product.norm is not None
    return multiply(rms_norm(x.rows, product.norm, eps), product.weight, bias, together=x.together)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension, in float32, rounded to the dtype of `x` before the weight."""
    if x.dtype == torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    x32 = x.float()
    return weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split form; x [..., heads, D], cos and sin [..., 1, D / 2] of the same dtype."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def split_heads(
    qkv: Tensor, weights: LayerWeights, config: TransformerConfig, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """[..., (q + 2 kv) heads·D] → normed and rotated query, normed and rotated key, value, each [..., heads, D].

    cos and sin are [..., 1, D / 2].
    """
    sizes = [config.query_size, config.key_value_size, config.key_value_size]
    query, key, value = (part.unflatten(-1, (-1, config.head_dim)) for part in qkv.split(sizes, dim=-1))
    query = rotate(rms_norm(query, weights.q_norm, config.rms_norm_eps), cos, sin)
    key = rotate(rms_norm(key, weights.k_norm, config.rms_norm_eps), cos, sin)
    return query, key, value


def attend_grouped(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention with grouped heads.

    query [batch, rows, q heads, D]; keys and values [batch, positions, kv heads, D]; mask bool [batch or 1, rows,
    positions], None for no mask → [batch · rows, q heads·D].
    """
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=None if mask is None else mask.unsqueeze(1),
        enable_gqa=True,
    )
    return out.transpose(1, 2).flatten(2).flatten(0, 1)


def _visible_keys(cache: PagedCache, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
    """Cache indices of the positions up to the longest row's, int64 [rows, longest], and their causal mask.

    The mask is None for a single row, which sees all of them.
    """
    past = torch.arange(int(positions.max()) + 1, device=positions.device)
    return cache.index(slots[:, None], past), None if len(slots) == 1 else past <= positions[:, None, None]


def _copy_to(value: Tensor, out: Tensor | None) -> Tensor:
    return value if out is None else out.copy_(value)
