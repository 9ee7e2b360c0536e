"""Forms of streamed_unit.cu, a candidate for the codec's units of 192 channels."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from code2wav_step.kernels import resident_unit

if TYPE_CHECKING:  # the bindings are not installed where there is no GPU
    from code2wav_step.kernels.cuda_module import CudaKernel

CHANNELS, THREADS = 192, 384
# Bytes: of a block on Hopper, of a portion of weights, of six vectors, of barriers.
SHARED_BYTES, PORTION, VECTORS, BARRIERS = 232_448, CHANNELS * 64, 6 * CHANNELS * 4, 64

# Tries after which a wait in the kernel fails, instead of hanging the GPU.
SPINS = 1 << 16


@dataclass(frozen=True)
class Streamed:
    """`tried` are macros that the source has defaults for."""

    rows: int = 128
    cluster: int = 1
    tried: dict[str, int] = field(default_factory=dict)

    def kernel(self, folder: Path, taps: int, dilation: int) -> "CudaKernel":
        """`folder` is that of `sources`."""
        from code2wav_step.kernels.cuda_module import CudaKernel

        macros, shared = self.macros(taps, dilation) | {"SPINS": SPINS}, self.shared_bytes(taps, dilation)
        return CudaKernel(str(folder / "streamed_unit.cu"), "unit", macros, THREADS, shared, self.cluster)

    def macros(self, taps: int, dilation: int) -> dict[str, int]:
        shape = {"CHANNELS": CHANNELS, "TAPS": taps, "DILATION": dilation, "ROWS": self.rows, "CLUSTER": self.cluster}
        return shape | {"SLOTS": self._slots(taps, dilation)} | self.tried

    def shared_bytes(self, taps: int, dilation: int) -> int:
        return self._slots(taps, dilation) * (PORTION + 16) + self._other_bytes(taps, dilation)

    def _slots(self, taps: int, dilation: int) -> int:
        """Portions of weights that shared memory holds, each with two barriers."""
        return (SHARED_BYTES - self._other_bytes(taps, dilation)) // (PORTION + 16)

    def _other_bytes(self, taps: int, dilation: int) -> int:
        x_rows = -(-(self.rows + (taps - 1) * dilation) // 8) * 8
        return 2 * CHANNELS * x_rows * 2 + VECTORS + BARRIERS

    def grid(self, tiles: int, processors: int) -> int:
        return min(processors // self.cluster, -(-tiles // self.cluster)) * self.cluster


def _tried(shared: int, first: int, second: int) -> dict[str, int]:
    return {"SHARED": shared, "FIRST_SOLO": first, "SECOND_SOLO": second}


VARIANTS = {
    "alone": Streamed(),
    "alone, two in use": Streamed(tried={"IN_USE": 2}),
    "pairs": Streamed(cluster=2),
    "pairs, two in use": Streamed(cluster=2, tried={"IN_USE": 2}),
    "pairs, 6 shared": Streamed(cluster=2, tried=_tried(6, 10, 10)),
    "pairs, 10 shared": Streamed(cluster=2, tried=_tried(10, 8, 7)),
    "pairs, 64 rows": Streamed(rows=64, cluster=2),
}


@contextmanager
def sources() -> Iterator[Path]:
    """A folder with the candidate and the headers of the served kernels."""
    with TemporaryDirectory() as name:
        for folder in (Path(resident_unit.__file__).parent, Path(__file__).parent):
            for path in (*folder.glob("*.cuh"), *folder.glob("*.cu")):
                shutil.copy(path, name)
        yield Path(name)


def prepared(weight: Tensor, weight2: Tensor, taps: int) -> Tensor:
    """`portions` of streamed_unit.cu, from [192, taps * 192] and [192, 192]."""
    n = torch.arange(CHANNELS, device=weight.device)
    channel = n // 32 * 32 + n % 8 // 2 * 8 + n % 32 // 8 * 2 + n % 2
    first = weight.view(CHANNELS, taps, CHANNELS // 32, 4, 8)[channel].permute(1, 2, 3, 0, 4)
    second = weight2[channel][:, channel].view(2, CHANNELS // 2, CHANNELS // 64, 8, 8).permute(0, 2, 3, 1, 4)
    return torch.cat([first.reshape(-1), second.reshape(-1)])
