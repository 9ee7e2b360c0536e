"""Compares the codec's residual units in Triton (unit.py) and in CUDA (resident_unit.cu), on a Hopper GPU.

python -m scripts.benchmarks.codec_unit
"""

from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from code2wav_step.kernels.cuda_module import CudaKernel
from code2wav_step.kernels.resident_unit import CHANNELS, ROWS, ResidentUnit, blocks, processors
from code2wav_step.kernels.unit import unit_kernel
from code2wav_step.tiles import unit_tile
from scripts.benchmarks.common import show
from scripts.benchmarks.cuda_timing import graph_us

TAPS = 7
POSITIONS_PER_FRAME = 1920
DILATIONS = (1, 3, 9)
# Streams and frames of a codec call.
SHAPES = ((1, 1), (1, 4), (2, 4), (4, 4), (8, 4), (64, 4), (32, 16))
# Launches in a graph.
LAUNCHES = 8
console = Console()


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

        self.positions, past = self.frames * POSITIONS_PER_FRAME, (TAPS - 1) * self.dilation
        self.rows = self.streams * self.positions
        self.x = random(self.streams, past + self.positions, CHANNELS).half()
        self.residual = random(self.streams, self.positions, CHANNELS).half()
        self.weight = (random(CHANNELS, TAPS * CHANNELS) / (TAPS * CHANNELS) ** 0.5).half()
        self.weight2 = (random(CHANNELS, CHANNELS) / CHANNELS**0.5).half()
        scales = (0.1 * random(6, CHANNELS)) + torch.tensor([0, 1, 1, 0, 1, 1], device="cuda")[:, None]
        self.bias, self.alpha, self.inverse_beta, self.bias2, self.alpha2, self.inverse_beta2 = scales
        self.out = None if self.dilation == DILATIONS[-1] else torch.empty_like(self.residual)
        self.active = torch.empty(self.streams, past + self.positions, CHANNELS, device="cuda").half()[:, past:]
        form = ResidentUnit(TAPS, self.dilation)
        self._kernel = CudaKernel(form.source, form.function, form.macros, form.threads, form.shared_bytes)

    def triton(self) -> None:
        tile = unit_tile(self.rows, CHANNELS)
        unit_kernel[(tile.programs(self.rows, CHANNELS),)](
            *self._tensors(), self.rows, self.positions, self.weight.shape[1], self.x.stride(0), self.active.stride(0),
            CHANNELS=CHANNELS, DILATION=self.dilation, FAST=True, BLOCK_M=tile.rows, BLOCK_K=tile.depth, **tile.launch,
        )  # fmt: skip

    def resident(self) -> None:
        tiles = self.rows // ROWS
        strides = self.x.stride(0), self.active.stride(0)
        self._kernel((blocks(tiles, processors()), 1), *self._tensors(), self.positions, tiles, *strides)

    def expected(self) -> Tensor:
        """float32 [streams, positions, channels]"""
        windows = self.x.float().unfold(1, (TAPS - 1) * self.dilation + 1, 1)[..., :: self.dilation]
        taps = self.weight.float().view(CHANNELS, TAPS, CHANNELS)
        y = torch.einsum("bpck,okc->bpo", windows, taps) + self.bias
        y = y + torch.sin(y * self.alpha) ** 2 * self.inverse_beta
        z = y @ self.weight2.float().T + self.bias2 + self.residual.float()
        expected: Tensor = z + torch.sin(z * self.alpha2) ** 2 * self.inverse_beta2
        return expected

    def _tensors(self) -> tuple[Any, ...]:
        first = (self.x, self.weight, self.bias, self.alpha, self.inverse_beta)
        second = (self.weight2, self.bias2, self.alpha2, self.inverse_beta2)
        return (*first, *second, self.residual, self.out, self.active)


def measure(case: Case) -> dict[str, Any]:
    row: dict[str, Any] = {"call": f"{case.streams}x{case.frames}", "dilation": case.dilation}
    kernels = (("unit.py", case.triton), ("resident_unit.cu", case.resident))
    # The reference of a large call does not fit.
    expected = case.expected() if case.rows <= 64 * POSITIONS_PER_FRAME else None
    for name, run in kernels:
        case.active.fill_(torch.nan)
        run()
        if expected is not None:
            row[f"{name}: largest error"] = f"{float((case.active - expected).abs().max()):.2e}"
        assert bool(case.active.isfinite().all()), f"{name} leaves values out"
    for name, run in kernels:
        row[f"{name}, us"] = round(graph_us(lambda run=run: [run() for _ in range(LAUNCHES)]) / LAUNCHES, 1)  # type: ignore[misc]
    return row


def main() -> None:
    rows = [measure(Case(*shape, dilation)) for shape in SHAPES for dilation in DILATIONS]
    show([row for row in rows if "unit.py: largest error" in row], console)
    show([row for row in rows if "unit.py: largest error" not in row], console)


if __name__ == "__main__":
    main()
