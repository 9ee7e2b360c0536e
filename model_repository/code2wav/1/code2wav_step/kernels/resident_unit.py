"""The specialisations of resident_unit.cu."""

import os
from dataclasses import dataclass
from typing import ClassVar

import torch

from code2wav_step.kernels.kernel_path import CHOICE_VARIABLE, HOPPER, kernel_path

ROWS, GROUPS = 64, 3
CHANNELS = 96


@dataclass(frozen=True)
class ResidentUnit:
    source: ClassVar[str] = "resident_unit.cu"
    function: ClassVar[str] = "unit"
    threads: ClassVar[int] = 128 * GROUPS

    taps: int
    dilation: int

    @property
    def macros(self) -> dict[str, int]:
        return {"CHANNELS": CHANNELS, "TAPS": self.taps, "DILATION": self.dilation, "GROUPS": GROUPS}

    @property
    def shared_bytes(self) -> int:
        """Weights, a tile of x for each group, six vectors, and a barrier for each tap and the rest."""
        x_rows = -(-(ROWS + (self.taps - 1) * self.dilation) // 16) * 16
        matrices = self.taps + 1
        return (matrices * CHANNELS + GROUPS * x_rows) * CHANNELS * 2 + 6 * CHANNELS * 4 + matrices * 8


def processors() -> int:
    """Multiprocessors of the GPU, 0 if it cannot run these kernels."""
    if not torch.cuda.is_available():
        return 0
    if kernel_path(torch.cuda.get_device_capability(), os.environ.get(CHOICE_VARIABLE, "auto")) != HOPPER:
        return 0
    return int(torch.cuda.get_device_properties().multi_processor_count)


def fits(channels: int, positions: int) -> bool:
    """Whether it can compute entries of so many positions."""
    return channels == CHANNELS and positions % ROWS == 0
