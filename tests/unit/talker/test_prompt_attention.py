"""The attention of prompts in Triton's interpreter against PyTorch (tests/gpu runs the compiled kernel)."""

import pytest
import torch

from qwen3_tts_engine.checkpoint.configs import TransformerConfig
from qwen3_tts_engine.talker.kv_cache import PagedCache
from qwen3_tts_engine.talker.ops.interface import Hidden
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear

pytest.importorskip("triton", reason="Triton is not installed")
PAGE, LAYER = 8, 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the compiled kernel")
@pytest.mark.parametrize(("heads", "key_heads", "size"), [(4, 2, 128), (3, 1, 64)])
@pytest.mark.parametrize(
    "prompts", [[(0, 5)], [(0, 40), (0, 3), (0, 70)], [(130, 20), (0, 1), (64, 33)]], ids=["short", "several", "later"]
)
def test_prompts_attend_to_their_own_past(
    heads: int, key_heads: int, size: int, prompts: list[tuple[int, int]]
) -> None:
    """`prompts` are (first position, rows): the keys before are of an earlier prefill."""
    from qwen3_tts_engine.talker.kernels.prompt_attention import KEYS, QUERIES, programs, prompt_attention_kernel

    torch.manual_seed(0)
    config = transformer_config(heads, key_heads, size)
    pages = max(first + rows for first, rows in prompts) // PAGE + 1
    table = torch.randperm(len(prompts) * pages).reshape(len(prompts), pages)
    cache = PagedCache(config, len(prompts) * pages, PAGE, table, torch.float32)
    cache.data.normal_()
    slots = torch.cat([torch.full((rows,), slot) for slot, (_, rows) in enumerate(prompts)])
    positions = torch.cat([torch.arange(first, first + rows) for first, rows in prompts])
    hidden, weights = 30 * torch.randn(len(slots), config.hidden_size), layer(config)
    attend = TorchOps().paged_attention(cache, slots, positions, prompts=len(slots))
    expected = attend(LAYER, Hidden(hidden), weights)
    found, qkv = torch.empty_like(expected), TorchOps().norm_linear(Hidden(hidden), weights.qkv, config.rms_norm_eps)
    grid = (programs(len(slots), heads // key_heads), key_heads)
    prompt_attention_kernel[grid](
        qkv, weights.q_norm, cache.cos, cache.sin, *cache.data[LAYER], table, slots, positions, found,
        len(slots), table.stride(0), config.rms_norm_eps, size**-0.5,
        GROUP=heads // key_heads, KV_HEADS=key_heads, D=size, PAGE=PAGE, QUERIES=QUERIES, KEYS=KEYS, PDL=False,
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


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
