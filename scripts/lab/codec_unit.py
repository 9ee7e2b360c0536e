"""Compares the codec's units of 96 channels in Triton (unit.py) and in CUDA (resident_unit.cu), on a Hopper GPU.

    python -m scripts.lab.codec_unit

Prints microseconds of a launch, and the largest error against float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from code2wav_step.kernels import resident_unit
from code2wav_step.kernels.cuda_module import CudaKernel
from code2wav_step.kernels.resident_unit import CHANNELS, ROWS, ResidentUnit
from code2wav_step.kernels.streamed_product import in_columns
from code2wav_step.kernels.unit import unit_kernel
from code2wav_step.tiles import unit_tile
from scripts.benchmarks.common import show
from scripts.lab.cuda_timing import graph_us

TAPS = 7
DILATIONS = (1, 3, 9)
POSITIONS_PER_FRAME = 1920
# Streams and frames of a codec call.
SHAPES = ((1, 1), (1, 4), (2, 4), (4, 4), (8, 4), (64, 4), (32, 16))
# Launches in a graph.
LAUNCHES = 8
# The reference of a larger call does not fit.
REFERENCE_ROWS = 64 * 1920
console = Console(width=200)


@dataclass
class Case:
    """One unit with random weights; the last one of a block, of dilation 9, stores no `out`."""

    streams: int
    frames: int
    dilation: int

    def __post_init__(self) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, device="cuda", generator=generator)

        past = (TAPS - 1) * self.dilation
        self.positions = self.frames * POSITIONS_PER_FRAME
        self.rows = self.streams * self.positions
        self.x = random(self.streams, past + self.positions, CHANNELS).half()
        self.residual = random(self.streams, self.positions, CHANNELS).half()
        self.weight = (random(CHANNELS, TAPS * CHANNELS) / (TAPS * CHANNELS) ** 0.5).half()
        self.weight2 = (random(CHANNELS, CHANNELS) / CHANNELS**0.5).half()
        self.ordered, self.columns = in_columns(self.weight, TAPS, ordered=True), in_columns(self.weight2, 1)
        scales = (0.1 * random(6, CHANNELS)) + torch.tensor([0, 1, 1, 0, 1, 1], device="cuda")[:, None]
        self.first, self.second = scales[:3].unbind(), scales[3:].unbind()
        self.out = None if self.dilation == DILATIONS[-1] else torch.empty_like(self.residual)
        self.active = torch.empty(self.streams, past + self.positions, CHANNELS, device="cuda").half()[:, past:]
        self.results = (self.residual, self.out, self.active)

    def triton(self) -> None:
        tile = unit_tile(self.rows, CHANNELS)
        unit_kernel[(tile.programs(self.rows, CHANNELS),)](
            self.x, self.weight, *self.first, self.weight2, *self.second, *self.results,
            self.rows, self.positions, self.weight.shape[1], self.x.stride(0), self.active.stride(0),
            CHANNELS=CHANNELS, DILATION=self.dilation, FAST=True, BLOCK_M=tile.rows, BLOCK_K=tile.depth,
            **tile.launch,
        )  # fmt: skip

    def resident(self, kernel: CudaKernel) -> None:
        tiles = self.rows // ROWS
        tensors = (self.x, self.ordered, *self.first, self.columns, *self.second, *self.results)
        grid = (min(tiles, resident_unit.processors()), 1)
        kernel(grid, *tensors, self.positions, tiles, self.x.stride(0), self.active.stride(0))

    def expected(self) -> Tensor:
        """float32 [streams, positions, channels]"""
        bias, alpha, inverse_beta = self.first
        bias2, alpha2, inverse_beta2 = self.second
        x, weight = self.x.float(), self.weight.float()
        y = bias.expand(self.streams, self.positions, -1).clone()
        for tap in range(TAPS):
            here = slice(tap * self.dilation, tap * self.dilation + self.positions)
            y += x[:, here] @ weight[:, tap * CHANNELS : (tap + 1) * CHANNELS].T
        y = y + torch.sin(y * alpha) ** 2 * inverse_beta
        z = y @ self.weight2.float().T + bias2 + self.residual.float()
        expected: Tensor = z + torch.sin(z * alpha2) ** 2 * inverse_beta2
        return expected


Kernels = dict[str, Callable[[Case], None]]


def kernels(dilation: int) -> Kernels:
    form = ResidentUnit(TAPS, dilation)
    kernel = CudaKernel(form.source, form.function, form.macros, form.threads, form.shared_bytes, overlaps=True)
    return {"unit.py": Case.triton, form.source: partial(Case.resident, kernel=kernel)}


def measure(case: Case, runs: Kernels) -> dict[str, Any]:
    """Microseconds of each kernel, and its largest error where there is a reference."""
    row: dict[str, Any] = {"call": f"{case.streams}x{case.frames}", "dilation": case.dilation}
    expected = case.expected() if case.rows <= REFERENCE_ROWS else None
    for name, run in runs.items():
        case.active.fill_(torch.nan)
        run(case)
        error = "" if expected is None else f" ({float((case.active - expected).abs().max()):.1e})"
        assert bool(case.active.isfinite().all()), f"{name} leaves values out"
        us = graph_us(lambda run=run: [run(case) for _ in range(LAUNCHES)]) / LAUNCHES  # type: ignore[misc]
        row[name] = f"{us:.1f}{error}"
    return row


def main() -> None:
    torch.cuda.synchronize()  # makes the context that modules are loaded into
    runs = {dilation: kernels(dilation) for dilation in DILATIONS}
    cases = (Case(*shape, dilation) for shape in SHAPES for dilation in DILATIONS)
    show([measure(case, runs[case.dilation]) for case in cases], console)


if __name__ == "__main__":
    typer.run(main)
