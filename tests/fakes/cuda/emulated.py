"""Compiles a kernel of products for the emulator in this folder, runs it, and compares it with float64."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from qwen3_tts_engine.talker.kernels import linear
from qwen3_tts_engine.talker.kernels.skinny_linear import SkinnyLinear
from qwen3_tts_engine.talker.kernels.tile_linear import SUM_OUTPUTS, TileLinear
from tests.fakes.cuda.compiler import compiled

KERNELS = Path(linear.__file__).parent
EPS = 1e-6
SEEDS = range(3)


def error(form: SkinnyLinear | TileLinear, rows: int, source: str, folder: Path) -> float | None:
    """The error of the worst row relative to its norm, over SEEDS; None if a run did not end.

    `source` is compiled in place of the form's, in `folder`.
    """
    program = Path(__file__).with_name(f"{form.function}.cpp")
    kernel = compiled(program, form.source, source, form.macros, folder, [KERNELS])
    errors = [measured(kernel, form, rows, seed) for seed in SEEDS]
    return None if None in errors else max(filter(None, errors))


def measured(kernel: Any, form: SkinnyLinear | TileLinear, rows: int, seed: int) -> float | None:
    random = np.random.default_rng(seed)
    x, weight = random.normal(size=(rows, form.K)), 0.05 * random.normal(size=(form.N * (1 + form.GATED), form.K))
    bias, start = random.normal(size=form.N), random.normal(size=(rows, form.N))
    arrays = [to_bfloat16(array) for array in (x, weight, bias, start)]
    out = np.zeros(start.shape, np.float32) if form.FLOAT_OUT else arrays[-1].copy()
    squares = np.stack([np.square(part).sum(1) for part in np.split(to_float(arrays[0]), 2, axis=1)]).astype(np.float32)
    sums = np.full((form.N // SUM_OUTPUTS, rows), np.nan, np.float32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays[:-1], squares, sums, out)]
    blocks = form.blocks(rows) if isinstance(form, TileLinear) else form.blocks
    if kernel(*pointers, rows, ctypes.c_float(EPS), blocks, form.shared_bytes, seed):
        return None
    expected = reference(form, *map(to_float, arrays))
    found = out if form.FLOAT_OUT else to_float(out)
    errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    if form.RESIDUAL and isinstance(form, TileLinear):
        errors = np.append(errors, np.abs(sums.sum(0) / np.square(found).sum(1) - 1))
    return float(np.nan_to_num(errors, nan=9).max())


def reference(
    form: SkinnyLinear | TileLinear, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, start: np.ndarray
) -> np.ndarray:
    scale = 1 / np.sqrt(np.square(x).mean(1, keepdims=True) + EPS) if form.NORM else 1.0
    y: np.ndarray = (x * scale) @ weight.T
    if form.BIAS:
        y += bias
    if form.GATED:
        gate, up = np.split(y, 2, axis=1)
        y = gate / (1 + np.exp(-gate)) * up
    return y + start if form.RESIDUAL else y


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    rounded: np.ndarray = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return rounded


def to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
