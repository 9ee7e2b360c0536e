"""paged_attention of attention.cu on the CPU, in an emulator of warps; tests/gpu runs it on a GPU."""

import ctypes
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fakes.cuda import compiler
from tests.fakes.cuda.compiler import compiled, mutated
from tests.fakes.cuda.emulated import KERNELS
from tests.unit.talker.attention_case import PAGE, AttentionCase, attention_case, relative_error

SOURCE = KERNELS / "attention.cu"
PROGRAM = Path(compiler.__file__).with_name("attention.cpp")
BF16, SEEDS = torch.bfloat16, (0, 3)
# Heads, key heads, size, warps, positions of a page; positions of frames; first positions and rows of prompts.
CASES = {
    "frames": (4, 2, 64, 2, PAGE, [0, 15, 16, 40], []),
    "frames, more warps than blocks of keys": (2, 1, 128, 4, PAGE, [3, 33], []),
    "frames, several blocks of keys a warp": (4, 2, 64, 3, PAGE, [130, 95, 96, 47], []),
    "in pages of five positions": (2, 1, 64, 2, 5, [101, 14], [(5, 9)]),
    "a prompt": (4, 2, 64, 2, PAGE, [], [(0, 21)]),
    "prompts that share blocks": (4, 2, 64, 2, PAGE, [], [(0, 2), (0, 1), (0, 3), (0, 18)]),
    "prompts whose beginnings are cached": (4, 2, 64, 2, PAGE, [], [(8, 9), (40, 3), (16, 1)]),
    "beside frames": (2, 1, 128, 4, PAGE, [20, 5, 1, 150], [(8, 13), (0, 38)]),
    "three heads a key head": (3, 1, 64, 1, PAGE, [18], [(0, 5), (24, 20)]),
    "a prompt of many rows": (1, 1, 64, 1, PAGE, [2], [(0, 75)]),
}
MUTATIONS = {
    "the third keys of a warp are in the pages of the second": ("        places = look_up(next + WARPS * KEYS);\n", ""),
    "the next keys replace keys that are still read": (
        "    float scores[2][4] = {};\n",
        "    then();\n    float scores[2][4] = {};\n",
    ),
    "a warp keeps its first values": (
        "        if (more) replace_values(block, next, position, group, quarter, value_at);\n",
        "",
    ),
    "positions after the last have values": ("load_own_if(at < end, block.value", "load_own_if(true, block.value"),
    "a new key is seen by the first block of keys alone": ("if (position - first < KEYS) {", "if (position < KEYS) {"),
    "new keys are read before they are written": (
        "    __syncwarp();\n    if (group >= QUERIES)",
        "    if (group >= QUERIES)",
    ),
    "sums of the row before are still read": ("        if (row > top) __syncthreads();\n", ""),
    "sums of other warps are not waited for": (
        "        __syncthreads();\n        for (int i = threadIdx",
        "        for (int i = threadIdx",
    ),
    "cached keys are not read": ("at < fresh ? pages.key(at) : ", ""),
    "new keys are not prepared": ("                    if (at >= fresh) block.key[tile] = key;\n", ""),
    "a prompt ends at 32 rows": ("    while (high - low > 1) {\n", "    {\n"),
}
pytestmark = [pytest.mark.long, pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")]


@pytest.mark.parametrize("name", CASES)
def test_rows_attend_to_their_own_past_and_store_their_keys(tmp_path: Path, name: str) -> None:
    found = error(name, SOURCE.read_text(), tmp_path)
    assert found < 2e-2


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_wrong_kernel(tmp_path: Path, name: str) -> None:
    found = error("beside frames", mutated(SOURCE.read_text(), MUTATIONS[name]), tmp_path)
    assert found > 0.05


def error(name: str, source: str, folder: Path) -> float:
    """The largest error of a row, or of a key or value, relative to its norm; infinite for what is not a number."""
    heads, key_heads, size, warps, page, frames, prompts = CASES[name]
    case = attention_case(heads, key_heads, size, prompts, frames, page)
    sizes = {"GROUP": heads // key_heads, "KV_HEADS": key_heads, "D": size, "COUNT": 1, "PAGE": page, "PROMPTS": 1}
    kernel = compiled(PROGRAM, SOURCE.name, source, sizes | {"WARPS": warps}, folder, [KERNELS])
    return max(measured(kernel, case, len(frames), seed) for seed in SEEDS)


def measured(kernel: Any, case: AttentionCase, frames: int, seed: int) -> float:
    config, rows, cache = case.config, len(case.slots), case.cache
    out, data = torch.full_like(case.expected, torch.nan, dtype=BF16), case.before.to(BF16)
    data[:, ~cached(case, below=case.starts)] = torch.nan
    norms = (case.weights.q_norm, case.weights.k_norm)
    tensors = [tensor.to(BF16).contiguous() for tensor in (case.qkv, *norms, cache.cos, cache.sin)]
    tensors += [*data, cache.page_table, case.slots, case.positions, out]
    lines = frames + -(-(rows - frames) // (8 * config.num_key_value_heads // config.num_attention_heads))
    floats = (ctypes.c_float(config.rms_norm_eps), ctypes.c_float(config.head_dim**-0.5))
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    assert not kernel(*pointers, frames, rows, cache.page_table.stride(0), *floats, lines, seed)
    written = cached(case, below=case.ends)
    assert data[:, ~written].isnan().all(), "wrote where no row is"
    pairs = ((out, case.expected), (data[:, written], case.after[:, written]))
    return max(relative_error(found, wanted) for found, wanted in pairs)


def cached(case: AttentionCase, below: Tensor) -> Tensor:
    """Whether the cache has a position below that of its slot, bool [positions of the cache]."""
    table, page = case.cache.page_table, case.cache.page_size
    places = table[:, :, None] * page + torch.arange(page)
    found = torch.zeros(case.after.shape[1], dtype=torch.bool)
    found[places] = (torch.arange(table.shape[1] * page) < below[:, None]).view(places.shape)
    return found
