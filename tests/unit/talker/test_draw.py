"""draw.cu on the CPU, in an emulator of warps; tests/gpu runs it on a GPU."""

import ctypes
import shutil
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qwen3_tts_engine.talker.sampling import mask_first, uniforms
from tests.fakes.cuda import compiler
from tests.fakes.cuda.compiler import compiled, mutated
from tests.fakes.cuda.emulated import KERNELS

SOURCE = KERNELS / "draw.cu"
PROGRAM = Path(compiler.__file__).with_name("draw.cpp")
CODES, EOS, WIDTH, CODEBOOKS = 192, 200, 16, 4
ROWS, THREADS = 12, 64
# Rounding of sums in float32.
ROUNDING = 1e-5
# Temperature, top_k, top_p, repetition penalty.
OPTIONS = {
    "greedy": (0.0, 50, 1.0, 1.2),
    "top k": (0.9, 20, 1.0, 1.3),
    "one candidate": (0.7, 1, 1.0, 1.0),
    "nucleus": (1.2, 0, 0.7, 1.0),
    "both": (1.0, 30, 0.8, 1.1),
    "all": (1.0, 0, 1.0, 1.0),
    "more candidates than logits": (1.0, 3000, 1.0, 1.0),
}
MUTATIONS = {
    "a candidate too many": ("return count(reached, turn) - top_k;", "return count(reached, turn) - top_k - 1;"),
    "one buffer for all sums": ("scratch[turn ^= 1]", "scratch[turn]"),
    "a warp does not wait for the others' mass": (
        "        __syncthreads();\n        float offset",
        "        float offset",
    ),
    "lanes add what nobody gave": ("if (lane >= other) prefix += left;", "prefix += left;"),
    "mass of a warp is left out": ("if (other < warp) offset", "if (other + 1 < warp) offset"),
}
pytestmark = [pytest.mark.long, pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")]


@pytest.mark.parametrize("codebook", [0, 3])
@pytest.mark.parametrize("vocabulary", [256, 1024])
def test_codes_are_of_the_distribution_in_whatever_order_threads_run(
    tmp_path: Path, vocabulary: int, codebook: int
) -> None:
    kernel = built(SOURCE.read_text(), vocabulary, codebook, tmp_path)
    check_all(kernel, vocabulary, codebook, OPTIONS, num_seeds=1)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_wrong_kernel(tmp_path: Path, name: str) -> None:
    kernel = built(mutated(SOURCE.read_text(), MUTATIONS[name]), 256, 3, tmp_path)
    with pytest.raises(AssertionError):
        check_all(kernel, 256, 3, ["top k", "one candidate"], num_seeds=4)


def built(source: str, vocabulary: int, codebook: int, folder: Path) -> Any:
    sizes = {"VOCABULARY": vocabulary, "CODES": CODES, "CODEBOOKS": CODEBOOKS, "WIDTH": WIDTH, "THREADS": THREADS}
    return compiled(PROGRAM, SOURCE.name, source, {**sizes, "FIRST": int(codebook == 0)}, folder, [KERNELS])


def check_all(kernel: Any, vocabulary: int, codebook: int, names: Iterable[str], num_seeds: int) -> None:
    for name, seed, has_ties in product(names, range(num_seeds), (False, True)):
        check(kernel, vocabulary, codebook, OPTIONS[name], seed, has_ties)


def check(
    kernel: Any, vocabulary: int, codebook: int, options: tuple[float, int, float, float], seed: int, has_ties: bool
) -> None:
    """In each row the distribution allows the code at the row's random number; its embedding and `seen` fit it."""
    random = np.random.default_rng(seed)
    logits = (5 * random.normal(size=(ROWS, vocabulary))).astype(np.float32)
    logits = logits.round() if has_ties else logits
    slots, seen = random.permutation(ROWS), random.random((ROWS, CODES)) < 0.3
    # Seed, frame, options of codebook 0 and of the others.
    fields = np.zeros((ROWS, 9), np.int64)
    fields[:, 0], fields[:, 1] = random.integers(1 << 40, size=ROWS), np.arange(ROWS) % 4
    fields[:, 2:].view(np.float64)[:] = (*options, *options[:3])
    table = random.integers(1 << 16, size=(vocabulary, WIDTH)).astype(np.uint16)
    codes, out, seen_after = np.full((ROWS, CODEBOOKS), -1), np.zeros((ROWS, WIDTH), np.uint16), seen.copy()
    columns = [fields.ctypes.data + fields.itemsize * column for column in range(3)]
    others = [array.ctypes.data for array in (seen_after, codes, table, out)]
    pointers = [ctypes.c_void_p(address) for address in (logits.ctypes.data, slots.ctypes.data, *columns, *others)]
    assert kernel(*pointers, codebook, fields.shape[1], WIDTH, EOS, ROWS, seed) == 0
    drawn = codes[:, codebook]
    np.testing.assert_array_equal(out, table[drawn])
    state = [torch.from_numpy(array[slots]) for array in (fields[:, 0], fields[:, 1], seen)]
    numbers = uniforms(state[0], state[1], CODEBOOKS)[:, codebook].double().numpy()
    scores = torch.from_numpy(logits)
    if codebook == 0:
        scores = mask_first(scores, state[2], torch.full((ROWS,), options[3]), state[1], EOS)
        seen[slots[drawn < CODES], drawn[drawn < CODES]] = True
    np.testing.assert_array_equal(seen_after, seen)
    for code, row, number in zip(drawn, scores.numpy(), numbers, strict=True):
        if options[0] == 0:
            assert code == row.argmax()
            continue
        probability = distribution(row, *options[:3])
        assert probability[code] > 0
        end = probability[: code + 1].sum()
        assert end - probability[code] - ROUNDING <= number <= end + ROUNDING


def distribution(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution of one row, float64; equal logits are in it or not together."""
    ranked = np.sort(logits)[::-1]
    if 0 < top_k < len(logits):
        logits = np.where(logits >= ranked[top_k - 1], logits, -np.inf)
    mass = np.exp((logits.astype(np.float64) - ranked[0]) / temperature)
    heaviest = np.sort(mass)[::-1]
    if top_p < 1:
        last = heaviest[np.searchsorted(np.cumsum(heaviest), top_p * mass.sum())]
        mass = np.where(mass >= last * (1 - ROUNDING), mass, 0)
    return np.asarray(mass / mass.sum())
