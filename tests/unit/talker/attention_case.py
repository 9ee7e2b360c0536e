"""Rows of frames and prompts in a cache of pages, and what attention makes of them in PyTorch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.configs import TransformerConfig
from qwen3_tts_engine.talker.kv_cache import PagedCache
from qwen3_tts_engine.talker.ops.interface import Hidden
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear

PAGE, LAYER = 8, 1


@dataclass(frozen=True)
class AttentionCase:
    """Layer LAYER in float32: `qkv` [rows, heads · D], the cache before and after, the result [rows, heads · D].

    `starts` and `ends` are the first new position of each slot, and the one after its last, int64 [slots].
    """

    config: TransformerConfig
    weights: LayerWeights
    cache: PagedCache
    slots: Tensor
    positions: Tensor
    starts: Tensor
    ends: Tensor
    qkv: Tensor
    before: Tensor
    expected: Tensor

    @property
    def after(self) -> Tensor:
        return self.cache.data[LAYER]


def attention_case(
    heads: int,
    key_heads: int,
    size: int,
    prompts: list[tuple[int, int]],
    frames: list[int] | None = None,
    page_size: int = PAGE,
) -> AttentionCase:
    """`frames` are positions; `prompts` are (first position, rows). The keys before are of earlier ticks."""
    torch.manual_seed(0)
    config, frames = transformer_config(heads, key_heads, size), frames or []
    parts = [*((position, 1) for position in frames), *prompts]
    pages = max(first + rows for first, rows in parts) // page_size + 1
    table = torch.randperm(len(parts) * pages).reshape(len(parts), pages)
    cache = PagedCache(config, len(parts) * pages, page_size, table, torch.float32)
    cache.data.normal_()
    before = cache.data[LAYER].clone()
    slots = torch.cat([torch.full((rows,), slot) for slot, (_, rows) in enumerate(parts)])
    positions = torch.cat([torch.arange(first, first + rows) for first, rows in parts])
    hidden, weights = 30 * torch.randn(len(slots), config.hidden_size), layer(config)
    attend = TorchOps().paged_attention(cache, slots, positions, prompts=len(slots) - len(frames))
    expected = attend(LAYER, Hidden(hidden), weights)
    qkv = TorchOps().norm_linear(Hidden(hidden), weights.qkv, config.rms_norm_eps)
    starts, counts = torch.tensor(parts).T
    return AttentionCase(config, weights, cache, slots, positions, starts, starts + counts, qkv, before, expected)


def transformer_config(heads: int, key_heads: int, size: int) -> TransformerConfig:
    return TransformerConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=LAYER + 1,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=size,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        max_position_embeddings=1024,
    )


def layer(config: TransformerConfig) -> LayerWeights:
    outputs = config.query_size + 2 * config.key_value_size
    qkv = NormLinear(torch.ones(config.hidden_size), torch.randn(outputs, config.hidden_size))
    none = torch.empty(0)
    norms = 1 + 0.3 * torch.randn(2, config.head_dim)
    return LayerWeights(qkv, norms[0], norms[1], none, NormLinear(None, none), none)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Error of the worst vector, relative to its norm; infinite for what is not a number."""
    errors = (found.float() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    return float(errors.nan_to_num(torch.inf).max())
