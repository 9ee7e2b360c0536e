"""Compiles streamed_product.cu for the emulator, runs it, and compares it with float64."""

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from code2wav_step.kernels import streamed_product
from code2wav_step.kernels.streamed_product import ROWS, StreamedProduct
from tests.fakes.cuda.codec.arranged import arranged
from tests.fakes.cuda.codec.distance import worst
from tests.fakes.cuda.compiler import compiled

SOURCE = Path(streamed_product.__file__).with_suffix(".cu")


@dataclass
class Case:
    """Batch entries of so many positions; a unit has as many channels as columns. `results` names what is stored.

    `in_place` stores `out` in place of the residual.
    """

    entries: int
    positions: int
    channels: int
    outputs: int
    taps: int
    dilation: int
    form: StreamedProduct
    blocks: int
    results: tuple[str, ...] = ("out", "active")
    has_residual: bool = True
    in_place: bool = False


def errors(case: Case, source: str, folder: Path) -> Iterator[float]:
    """See emulated_unit.errors."""
    program = Path(__file__).with_name("streamed_product.cpp")
    kernel = compiled(program, SOURCE.name, source, case.form.macros, folder, [SOURCE.parent])
    return (measured(kernel, case, seed) for seed in count())


def measured(kernel: Any, case: Case, seed: int) -> float:
    random, past = np.random.default_rng(seed), (case.taps - 1) * case.dilation
    is_unit = case.form.unit

    def matrix(taps: int, channels: int) -> np.ndarray:
        values: np.ndarray = random.normal(size=(case.outputs, taps, channels)) / (taps * channels) ** 0.5
        return values.astype(np.float16)

    x = random.normal(size=(case.entries, past + case.positions, case.channels)).astype(np.float16)
    weight, weight2 = matrix(case.taps, case.channels), matrix(1, case.outputs)
    vectors = (0.1 * random.normal(size=(6, case.outputs)) + np.array([0, 1, 1] * 2)[:, None]).astype(np.float32)
    residual = random.normal(size=(case.entries, case.positions, case.outputs)).astype(np.float16)
    expected = reference(case, *(array.astype(np.float64) for array in (x, weight, weight2, vectors, residual)))
    # As in a sequence: one position more in front.
    in_front = [(0, 0), (1, 0), (0, 0)]
    residual = np.pad(residual, in_front)
    stored = {
        name: np.full((case.entries, 1 + case.positions, case.outputs), np.nan, np.float16) for name in case.results
    }
    if case.in_place:
        stored["out"] = residual
    targets = [stored[name][:, 1:].ctypes.data if name in stored else None for name in ("out", "active")]
    sources = [x, arranged(weight, ordered=is_unit), arranged(weight2) if is_unit else None, vectors]
    pointers = [None if a is None else a.ctypes.data for a in sources]
    pointers += [residual[:, 1:].ctypes.data if case.has_residual else None, *targets]
    rows, form = case.entries * case.positions, case.form
    sizes = (rows, case.positions, case.channels, case.outputs, case.taps, case.dilation)
    rings = (form.taps_per_copy, form.x_stages, form.w_stages)
    stride = (1 + case.positions) * case.outputs
    numbers = (*sizes, *rings, x[0].size, stride, stride, stride, case.blocks, form.shared_bytes, seed)
    if kernel(*map(ctypes.c_void_p, pointers), *map(ctypes.c_int, numbers)):
        return math.inf
    return worst((stored[name][:, 1:], expected[name]) for name in stored)


def reference(
    case: Case, x: np.ndarray, weight: np.ndarray, weight2: np.ndarray, vectors: np.ndarray, residual: np.ndarray
) -> dict[str, np.ndarray]:
    here = (slice(tap * case.dilation, tap * case.dilation + case.positions) for tap in range(case.taps))
    y = vectors[0] + sum(x[:, rows] @ weight[:, tap].T for tap, rows in enumerate(here))
    last = vectors[:3]
    if case.form.unit:
        last = vectors[3:]
        y = (y + np.sin(y * vectors[1]) ** 2 * vectors[2]) @ weight2[:, 0].T + last[0]
    if case.has_residual:
        y = y + residual
    return {"out": y, "active": y + np.sin(y * last[1]) ** 2 * last[2]}


def of(columns: int, groups: int, positions: int, taps: int, dilation: int, *, unit: bool = False) -> StreamedProduct:
    return StreamedProduct(columns, groups, 1 if positions % ROWS else taps, dilation, unit)
