"""Compiles skinny_product.cu for the emulator, runs it, and compares it with float64."""

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from code2wav_step.kernels import skinny_product
from code2wav_step.kernels.skinny_product import SkinnyProduct
from tests.fakes.cuda.codec.distance import worst
from tests.fakes.cuda.compiler import compiled

SOURCE = Path(skinny_product.__file__).with_suffix(".cu")
EPS = 1e-5


@dataclass
class Case:
    """Batch entries of so many positions; `results` names what is stored, `out` in place of a residual."""

    entries: int
    positions: int
    form: SkinnyProduct
    dilation: int = 1
    results: tuple[str, ...] = ("out",)
    has_vectors: bool = True
    has_residual: bool = False


def errors(case: Case, source: str, folder: Path) -> Iterator[float]:
    """See emulated_unit.errors."""
    program = Path(__file__).with_name("skinny_product.cpp")
    kernel = compiled(program, SOURCE.name, source, case.form.macros, folder, [SOURCE.parent])
    return (measured(kernel, case, seed) for seed in count())


def measured(kernel: Any, case: Case, seed: int) -> float:
    random, form = np.random.default_rng(seed), case.form
    past = (form.taps - 1) * case.dilation
    x = random.normal(size=(case.entries, past + case.positions, form.channels)).astype(np.float16)
    lines = form.outputs * (2 if form.activation == "gated" else 1)
    weight = random.normal(size=(lines, form.taps, form.channels)) / (form.taps * form.channels) ** 0.5
    weight = weight.astype(np.float16)
    vectors = (0.1 * random.normal(size=(3, form.outputs)) + np.array([0, 1, 1])[:, None]).astype(np.float32)
    # As in a sequence: one position more in front.
    shape = (case.entries, 1 + case.positions, form.outputs)
    residual = random.normal(size=shape).astype(np.float16)
    expected = reference(case, *(array.astype(np.float64) for array in (x, weight, vectors, residual[:, 1:])))
    stored = {name: np.full(shape, np.nan, np.float16) for name in case.results}
    if case.has_residual and "out" in stored:
        stored["out"] = residual
    targets = [stored[name][:, 1:].ctypes.data if name in stored else None for name in ("out", "active")]
    pointers = [x.ctypes.data, weight.ctypes.data, vectors.ctypes.data if case.has_vectors else None]
    pointers += [residual[:, 1:].ctypes.data if case.has_residual else None, *targets]
    rows = case.entries * case.positions
    sizes = (rows, case.positions, case.dilation, x[0].size, (1 + case.positions) * form.outputs)
    launch = (form.blocks(rows), form.shared_bytes, seed)
    if kernel(*map(ctypes.c_void_p, pointers), *map(ctypes.c_int, sizes), ctypes.c_float(EPS), *launch):
        return math.inf
    return worst((stored[name][:, 1:], expected[name]) for name in stored)


def reference(
    case: Case, x: np.ndarray, weight: np.ndarray, vectors: np.ndarray, residual: np.ndarray
) -> dict[str, np.ndarray]:
    form, (bias, alpha, inverse_beta) = case.form, vectors
    if form.norm:
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + EPS)
    y = np.zeros((case.entries, case.positions, len(weight)))
    for tap in range(form.taps):
        y += x[:, tap * case.dilation : tap * case.dilation + case.positions] @ weight[:, tap].T
    if form.activation == "gated":
        gate, y = np.split(y, 2, axis=-1)
        y *= (gate + bias * case.has_vectors) / (1 + np.exp(-gate - bias * case.has_vectors))
    elif case.has_vectors:
        y += bias
    if form.activation == "gelu":
        y *= 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
    if case.has_residual:
        y += residual
    return {"out": y, "active": y + np.sin(y * alpha) ** 2 * inverse_beta}
