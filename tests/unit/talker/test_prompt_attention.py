"""The attention of prompts in Triton's interpreter against PyTorch (tests/gpu runs the compiled kernel)."""

import pytest
import torch

from tests.unit.talker.attention_case import LAYER, PAGE, attention_case

pytest.importorskip("triton", reason="Triton is not installed")


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

    case = attention_case(heads, key_heads, size, prompts)
    cache, rows, found = case.cache, len(case.slots), torch.empty_like(case.expected)
    grid = (programs(rows, heads // key_heads), key_heads)
    prompt_attention_kernel[grid](
        case.qkv, case.weights.q_norm, cache.cos, cache.sin, *cache.data[LAYER], cache.page_table, case.slots,
        case.positions, found, rows, cache.page_table.stride(0), case.config.rms_norm_eps, size**-0.5,
        GROUP=heads // key_heads, KV_HEADS=key_heads, D=size, PAGE=PAGE, QUERIES=QUERIES, KEYS=KEYS, PDL=False,
    )  # fmt: skip
    torch.testing.assert_close(found, case.expected, rtol=1e-4, atol=1e-4)
