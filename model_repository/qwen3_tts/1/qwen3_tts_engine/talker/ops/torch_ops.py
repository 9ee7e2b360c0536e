"""The operations of a tick in PyTorch: the form that the CPU runs, and that the kernels are held against.

On a CPU the arithmetic of a row does not depend on the rows beside it, a prompt's apart, so that equal seeds give equal
codes.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from qwen3_tts_engine.checkpoint.configs import TransformerConfig
from qwen3_tts_engine.talker import sampling
from qwen3_tts_engine.talker.kv_cache import FrameCache, PagedCache
from qwen3_tts_engine.talker.ops.interface import Attention
from qwen3_tts_engine.talker.slot_state import SlotState
from qwen3_tts_engine.talker.weights import LayerWeights

# Bounds the memory that a prefill gathers at once.
GATHER_ROWS = 64
# The CPU's library adds in another order where there are fewer rows, or fewer are left over.
PRODUCT_ROWS = 4


class TorchOps:
    def rms_norm(self, x: Tensor, norm: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        return _put(rms_norm(x, norm, eps), out)

    def norm_linear(
        self, x: Tensor, norm: Tensor, weight: Tensor, eps: float, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        return _put(linear(rms_norm(x, norm, eps), weight, bias), out)

    def norm_logits(self, x: Tensor, norm: Tensor, weight: Tensor, eps: float) -> Tensor:
        return linear(rms_norm(x, norm, eps), weight).float()

    def norm_gated(self, x: Tensor, norm: Tensor, gate_up: Tensor, eps: float) -> Tensor:
        gate, up = linear(rms_norm(x, norm, eps), gate_up).chunk(2, dim=-1)
        return F.silu(gate) * up

    def add_linear(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
        residual += linear(x, weight)

    def embed(self, table: Tensor, indices: Tensor) -> Tensor:
        return table[indices].sum(1)

    def paged_attention(self, cache: PagedCache, slots: Tensor, positions: Tensor, *, prefill: bool) -> Attention:
        written = cache.page_table[slots, positions // cache.page_size] * cache.page_size + positions % cache.page_size
        cos, sin = cache.cos[positions], cache.sin[positions]
        # Over the longer past of another row it would be rounded otherwise; a prompt's rows are always the same.
        # Each thread has a buffer, whose alignment decides how a row is rounded.
        alone = slots.is_cpu and (not prefill or torch.get_num_threads() > 1)
        at_once = 1 if alone else GATHER_ROWS
        seen = [_seen(cache, *block) for block in zip(slots.split(at_once), positions.split(at_once), strict=True)]

        def attend(layer: int, qkv: Tensor, weights: LayerWeights) -> Tensor:
            query, key, value = split_heads(qkv, weights, cache.config, cos, sin)
            keys, values = cache.data[layer]
            keys[written], values[written] = key, value
            blocks = zip(query.unsqueeze(1).split(at_once), seen, strict=True)
            return torch.cat([attend_grouped(rows, keys[index], values[index], mask) for rows, (index, mask) in blocks])

        return attend

    def frame_attention(self, cache: FrameCache, start: int, count: int) -> Attention:
        end = start + count
        cos, sin = cache.cos[start:end], cache.sin[start:end]
        # One position sees all before it; several at once see each other as far as they come before.
        mask = None if count == 1 else torch.ones(1, count, end, dtype=torch.bool, device=cache.data.device).tril(start)
        # Each thread has a buffer, and how those are aligned decides how a row is rounded.
        alone = cache.data.is_cpu and torch.get_num_threads() > 1

        def attend(layer: int, qkv: Tensor, weights: LayerWeights) -> Tensor:
            query, key, value = split_heads(qkv.unflatten(0, (-1, count)), weights, cache.config, cos, sin)
            keys, values = cache.data[layer, :, : len(query), :end]
            keys[:, start:], values[:, start:] = key, value
            if not alone:
                return attend_grouped(query, keys, values, mask)
            rows = zip(query.split(1), keys.split(1), values.split(1), strict=True)
            return torch.cat([attend_grouped(*row, mask) for row in rows])

        return attend

    def rows(self, state: SlotState, slots: Tensor) -> "TorchRows":
        return TorchRows(state, slots)


class TorchRows:
    """interface.Rows; what every codebook needs is gathered once."""

    def __init__(self, state: SlotState, slots: Tensor) -> None:
        self.slots = slots
        self.hidden = state.input[slots]
        self.positions = state.position[slots]
        self.codes = slots.new_empty(len(slots), state.num_codebooks)
        self._state = state
        self._frame = state.frame[slots]
        self._uniform = sampling.uniforms(state.seed[slots], self._frame, state.num_codebooks)
        options = state.options[slots].float().unbind(1)
        self._penalty = options[3]
        self._first = sampling.DrawParameters(options[0], options[1].long(), options[2])
        self._others = sampling.DrawParameters(options[4], options[5].long(), options[6])

    def draw_first(self, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        state = self._state
        masked = sampling.mask_first(logits, state.seen[self.slots], self._penalty, self._frame, state.eos)
        first = sampling.draw(masked, self._first, self._uniform[:, 0])
        state.seen[self.slots, first.clamp(max=state.seen.shape[1] - 1)] = True
        self._keep(0, first, inputs, out)

    def draw(self, codebook: int, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        self._keep(codebook, sampling.draw(logits, self._others, self._uniform[:, codebook]), inputs, out)

    def advance(self, text_table: Tensor, code_table: Tensor, pad_text_id: int) -> None:
        state, slots = self._state, self.slots
        fed = state.trailing[slots, self._frame.clamp(max=state.trailing.shape[1] - 1)]
        text = torch.where(self._frame < state.num_trailing[slots], fed, pad_text_id)
        codes = code_table[self.codes + state.code_offsets].sum(1)
        state.input[slots] = codes + text_table[text]
        state.frame[slots] += slots != state.padding_slot
        state.position[slots] += slots != state.padding_slot

    def _keep(self, codebook: int, codes: Tensor, inputs: Tensor, out: Tensor) -> None:
        self.codes[:, codebook] = codes
        out.copy_(inputs[codes])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; on a CPU as a multiple of PRODUCT_ROWS rows."""
    missing = -len(x) % PRODUCT_ROWS if x.is_cpu else 0
    if not missing:
        return F.linear(x, weight, bias)
    return F.linear(torch.cat((x, x[:1].expand(missing, -1))), weight, bias)[: len(x)]


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
    positions], None to see everything → [batch · rows, q heads·D].
    """
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=None if mask is None else mask.unsqueeze(1),
        enable_gqa=True,
    )
    return out.transpose(1, 2).flatten(2).flatten(0, 1)


def _seen(cache: PagedCache, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
    """Where the keys that rows may see lie in the cache, int64 [rows, longest], and which of them each row does see.

    None of the latter for a single row, which sees them all.
    """
    past = torch.arange(int(positions.max()) + 1, device=positions.device)
    index = cache.page_table[slots][:, past // cache.page_size] * cache.page_size + past % cache.page_size
    return index, None if len(slots) == 1 else past <= positions[:, None, None]


def _put(value: Tensor, out: Tensor | None) -> Tensor:
    return value if out is None else out.copy_(value)
