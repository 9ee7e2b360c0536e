"""frame_attention of attention.cu on the CPU, in an emulator of warps; tests/gpu runs it on a GPU."""

import ctypes
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from qwen3_tts_engine.talker.kv_cache import FrameCache
from qwen3_tts_engine.talker.ops.interface import Hidden
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps
from tests.fakes.cuda import compiler
from tests.fakes.cuda.compiler import compiled, mutated
from tests.fakes.cuda.emulated import KERNELS
from tests.unit.talker.attention_case import LAYER, layer, relative_error, transformer_config

SOURCE = KERNELS / "attention.cu"
PROGRAM = Path(compiler.__file__).with_name("frame_attention.cpp")
BF16, POSITIONS, WARPS, ROWS = torch.bfloat16, 16, 4, 5
ROOMY, TIGHT = 3, 4
RIGHT, WRONG = 2e-2, 5e-2
# Heads, key heads, size; blocks of a multiprocessor; whether it norms; new positions, and the first of them.
CASES = {
    "the first two positions": (4, 2, 64, ROOMY, True, 2, 0),
    "one more": (4, 2, 64, ROOMY, True, 1, 2),
    "many positions": (2, 1, 128, ROOMY, False, 1, 11),
    "the last position, three heads a key head": (9, 3, 64, ROOMY, False, 1, 15),
    "few registers, two positions": (4, 2, 64, TIGHT, False, 2, 0),
    "few registers": (2, 1, 128, TIGHT, True, 1, 9),
}
MUTATIONS = {
    "norms are not waited for": ("few registers", ("        __syncthreads();\n    } else {", "    } else {")),
    "all new positions have the angles of the first": (
        "few registers, two positions",
        ("common[2 + role.fresh]", "common[2]"),
    ),
    "new keys are not seen": ("one more", ("    insert_keys(block, fresh, 0, start, group);\n", "")),
    "positions turn queries and keys the other way": ("one more", ("minus(times(a, cos)", "plus(times(a, cos)")),
    "rows are not normed": ("one more", ("if (INPUTS == 0) return 1.0f;", "return 1.0f;")),
    "the first position sees the second": (
        "the first two positions",
        ("0, start + role.fresh, quarter", "0, start + 1, quarter"),
    ),
}
pytestmark = [pytest.mark.long, pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")]


@pytest.mark.parametrize("name", CASES)
def test_rows_attend_to_their_frame_and_store_their_keys(tmp_path: Path, name: str) -> None:
    assert error(name, SOURCE.read_text(), tmp_path, seeds=range(3)) < RIGHT


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_wrong_kernel(tmp_path: Path, name: str) -> None:
    case, mutation = MUTATIONS[name]
    assert error(case, mutated(SOURCE.read_text(), mutation), tmp_path, seeds=range(0, 300, 2)) > WRONG


def error(name: str, source: str, folder: Path, seeds: range) -> float:
    """The largest error of a row, or of a key or value, relative to its norm, up to the first seed above WRONG."""
    heads, key_heads, size, resident, norms, count, _ = CASES[name]
    sizes = {"GROUP": heads // key_heads, "KV_HEADS": key_heads, "D": size, "POSITIONS": POSITIONS, "COUNT": count}
    inputs = transformer_config(heads, key_heads, size).hidden_size * norms
    macros = {**sizes, "INPUTS": inputs, "WARPS": WARPS, "RESIDENT": resident}
    kernel = compiled(PROGRAM, SOURCE.name, source, macros, folder, [KERNELS])
    worst = 0.0
    for seed in seeds:
        worst = max(worst, measured(kernel, name, seed))
        if worst > WRONG:
            break
    return worst


def measured(kernel: Any, name: str, seed: int) -> float:
    heads, key_heads, size, _, norms, count, start = CASES[name]
    torch.manual_seed(seed)
    config = transformer_config(heads, key_heads, size)
    hidden, weights = 30 * torch.randn(ROWS * count, config.hidden_size), layer(config)
    cache = FrameCache(config, ROWS + 1, POSITIONS, torch.float32, torch.device("cpu"))
    cache.data[LAYER, :, :ROWS, :start].normal_()
    data = cache.data[LAYER].to(BF16)
    # Later positions are not read, and the row beyond is not written.
    data[:, :, start:], data[:, ROWS:] = torch.nan, torch.nan
    expected = TorchOps().frame_attention(cache, start, count)(LAYER, Hidden(hidden), weights)
    normed = TorchOps().norm_linear(Hidden(hidden), weights.qkv, config.rms_norm_eps)
    qkv = hidden @ weights.qkv.weight.T if norms else normed
    out = torch.full_like(expected, torch.nan, dtype=BF16)
    inputs = (hidden, qkv, weights.q_norm, weights.k_norm, cache.cos, cache.sin)
    tensors = [*(tensor.to(BF16).contiguous() for tensor in inputs), *data, out]
    floats = (ctypes.c_float(config.rms_norm_eps), ctypes.c_float(config.head_dim**-0.5))
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    assert not kernel(*pointers, hidden.stride(0), ROWS, start, *floats, seed)
    end = start + count
    assert data[:, :, end:].isnan().all(), "wrote a later position"
    assert data[:, ROWS:].isnan().all(), "wrote outside its rows"
    pairs = ((out, expected), (data[:, :ROWS, :end], cache.data[LAYER, :, :ROWS, :end]))
    return max(relative_error(found, wanted) for found, wanted in pairs)
