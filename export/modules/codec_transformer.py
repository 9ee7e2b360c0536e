"""The codec's sliding-window transformer over a window of past keys and values, without absolute positions.

Keys are cached unrotated. Each step numbers the slots of window and chunk from 0 and rotates by that number, so that
rows of any age share a batch and angles stay small.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.modules.codec_layers import Linear, Weights
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig
from qwen3_tts_engine.codec.contract import MAX_FRAMES, max_history

# Acts as -inf in the softmax but is finite in FP16, so that no compiled form computes inf - inf.
MASKED_SCORE = -3e4


class Slots(NamedTuple):
    """Shared by all layers in a step of T frames over W past ones: rotation of W + T slots and attention mask."""

    cosine: Tensor  # [W + T, 1, head_dim]
    sine: Tensor
    visible: Tensor  # bool [batch, 1, T, W + T]


class SlotTables(nn.Module):
    """Constants from which each step slices its `Slots`."""

    def __init__(self, config: CodecDecoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.window = max_history(config)
        slots = torch.arange(self.window + MAX_FRAMES)
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = slots[:, None] / config.rope_theta**exponents
        angles = torch.cat([angles, angles], dim=1)[:, None]
        self.cosine = nn.Buffer(angles.cos().to(dtype))
        self.sine = nn.Buffer(angles.sin().to(dtype))
        frames = slots[:MAX_FRAMES, None]
        self.band = nn.Buffer((slots >= frames) & (slots <= frames + self.window))
        # The history from which on a slot of the window is valid; slots of the chunk always are.
        self.needed_history = nn.Buffer((self.window - slots).to(torch.int32))

    def forward(self, frames: int, history: Tensor) -> Slots:
        """`history` is int32 [batch, 1]."""
        slots = self.window + frames
        # A frame always sees itself, whatever history the caller passes.
        valid = self.needed_history[:slots] <= history.clamp(min=0)
        visible = self.band[:frames, :slots] & valid[:, None]
        return Slots(self.cosine[:slots], self.sine[:slots], visible[:, None])


class RmsNorm(nn.Module):
    def __init__(self, weights: Weights, eps: float) -> None:
        super().__init__()
        self.weight = nn.Buffer(weights["weight"])
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        variance = (exact * exact).mean(dim=-1, keepdim=True)
        return (exact * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, weights: Weights, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.query = Linear(weights.under("q_proj"))
        self.key = Linear(weights.under("k_proj"))
        self.value = Linear(weights.under("v_proj"))
        self.output = Linear(weights.under("o_proj"))
        self.head_dim = config.head_dim

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor], slots: Slots) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """`past` holds keys and values [batch, window, heads, head_dim], as does the next one."""
        window = past[0].shape[1]
        query = rotate(self._heads(self.query(x)), slots.cosine[window:], slots.sine[window:])
        keys = torch.cat([past[0], self._heads(self.key(x))], dim=1)
        values = torch.cat([past[1], self._heads(self.value(x))], dim=1)
        scores = query.transpose(1, 2) @ rotate(keys, slots.cosine, slots.sine).permute(0, 2, 3, 1)
        scores = (scores.float() * self.head_dim**-0.5).masked_fill(~slots.visible, MASKED_SCORE)
        y = scores.softmax(dim=-1).to(x.dtype) @ values.transpose(1, 2)
        return self.output(y.transpose(1, 2).flatten(2)), (keys[:, -window:], values[:, -window:])

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(2, (-1, self.head_dim))
        return heads


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of [batch, slots, heads, head_dim], halves paired."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


class GatedMlp(nn.Module):
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.gate = Linear(weights.under("gate_proj"))
        self.up = Linear(weights.under("up_proj"))
        self.down = Linear(weights.under("down_proj"))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return y


class Layer(nn.Module):
    def __init__(self, weights: Weights, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(weights.under("input_layernorm"), config.rms_norm_eps)
        self.attention = Attention(weights.under("self_attn"), config)
        self.attention_scale = nn.Buffer(weights["self_attn_layer_scale.scale"])
        self.mlp_norm = RmsNorm(weights.under("post_attention_layernorm"), config.rms_norm_eps)
        self.mlp = GatedMlp(weights.under("mlp"))
        self.mlp_scale = nn.Buffer(weights["mlp_layer_scale.scale"])

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor], slots: Slots) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, past = self.attention(self.attention_norm(x), past, slots)
        x = x + self.attention_scale * y
        return x + self.mlp_scale * self.mlp(self.mlp_norm(x)), past


class WindowTransformer(nn.Module):
    def __init__(self, weights: Weights, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.tables = SlotTables(config, weights.dtype)
        self.input = Linear(weights.under("input_proj"), bias=True)
        layers = weights.under("layers")
        self.layers = nn.ModuleList(Layer(layers.under(i), config) for i in range(config.num_hidden_layers))
        self.norm = RmsNorm(weights.under("norm"), config.rms_norm_eps)
        self.output = Linear(weights.under("output_proj"), bias=True)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`keys` and `values` are [batch, layers, window, heads, head_dim], as are the next ones returned after x."""
        slots = self.tables(x.shape[1], history)
        x = self.input(x)
        pasts = []
        for i, layer in enumerate(self.layers):
            x, past = layer(x, (keys[:, i], values[:, i]), slots)
            pasts.append(past)
        next_keys, next_values = (torch.stack(list(windows), dim=1) for windows in zip(*pasts, strict=True))
        return self.output(self.norm(x)), next_keys, next_values
