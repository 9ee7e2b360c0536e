"""Compiles resident_unit.cu for the emulator, runs it, and compares it with float64."""

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from code2wav_step.kernels import resident_unit
from code2wav_step.kernels.resident_unit import CHANNELS, ROWS, ResidentUnit
from tests.fakes.cuda.codec.arranged import arranged
from tests.fakes.cuda.codec.distance import worst
from tests.fakes.cuda.compiler import compiled

SOURCE = Path(resident_unit.__file__).with_suffix(".cu")
TAPS = 7


@dataclass
class Case:
    """Batch entries of so many positions; `out` is absent, apart from `residual`, or in place of it."""

    entries: int
    positions: int
    dilation: int
    blocks: int
    out: str = "apart"

    @property
    def form(self) -> ResidentUnit:
        return ResidentUnit(TAPS, self.dilation)


def errors(case: Case, source: str, folder: Path) -> Iterator[float]:
    """The errors relative to the norm with seeds 0, 1 ..; infinite if a run does not end.

    `source` is compiled in place of SOURCE, in `folder`.
    """
    program = Path(__file__).with_name("resident_unit.cpp")
    kernel = compiled(program, SOURCE.name, source, case.form.macros, folder, [SOURCE.parent])
    return (measured(kernel, case, seed) for seed in count())


def measured(kernel: Any, case: Case, seed: int) -> float:
    random, past = np.random.default_rng(seed), (TAPS - 1) * case.dilation
    x = random.normal(size=(case.entries, past + case.positions, CHANNELS)).astype(np.float16)
    weight = (random.normal(size=(CHANNELS, TAPS, CHANNELS)) / (TAPS * CHANNELS) ** 0.5).astype(np.float16)
    weight2 = (random.normal(size=(CHANNELS, CHANNELS)) / CHANNELS**0.5).astype(np.float16)
    vectors = (0.1 * random.normal(size=(6, CHANNELS)) + np.array([0, 1, 1, 0, 1, 1])[:, None]).astype(np.float32)
    residual = random.normal(size=(case.entries, case.positions, CHANNELS)).astype(np.float16)
    expected = reference(case, *(array.astype(np.float64) for array in (x, weight, vectors, weight2, residual)))
    # As in a sequence: one position more in front.
    active = np.full((case.entries, 1 + case.positions, CHANNELS), np.nan, np.float16)
    out = {"absent": None, "apart": np.full_like(residual, np.nan), "in place": residual}[case.out]
    ordered, columns = arranged(weight, ordered=True), arranged(weight2[:, None])
    pointers = [None if a is None else a.ctypes.data for a in (x, ordered, vectors, columns, residual, out)]
    pointers.append(active[:, 1:].ctypes.data)
    sizes = (case.positions, case.entries * case.positions // ROWS, x[0].size, active[0].size)
    numbers = (*sizes, case.blocks, case.form.shared_bytes, seed)
    arguments = [*map(ctypes.c_void_p, pointers), *map(ctypes.c_int, numbers)]
    if kernel(*arguments):
        return math.inf
    found = [active[:, 1:], *([] if out is None else [out])]
    return worst(zip(found, expected, strict=False))


def reference(
    case: Case, x: np.ndarray, weight: np.ndarray, vectors: np.ndarray, weight2: np.ndarray, residual: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`active` and `out`."""
    bias, alpha, inverse_beta, bias2, alpha2, inverse_beta2 = vectors
    here = (slice(tap * case.dilation, tap * case.dilation + case.positions) for tap in range(TAPS))
    y = bias + sum(x[:, rows] @ weight[:, tap].T for tap, rows in enumerate(here))
    y = y + np.sin(y * alpha) ** 2 * inverse_beta
    z = y @ weight2.T + bias2 + residual
    return z + np.sin(z * alpha2) ** 2 * inverse_beta2, z
