"""What the kernels for matrix products compute."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar, TypeVar

# Threads of a warp.
LANES = 32
FEW_ROWS, FEW_ROWS_CARVEOUT = 8, 60
Value = TypeVar("Value")


def by_rows(values: Mapping[int, Value], rows: int, beyond: Value) -> Value:
    """The value of the smallest number of rows that is not exceeded, `beyond` after the largest."""
    return next((value for most, value in values.items() if rows <= most), beyond)


def carveout(rows: int) -> int | None:
    """The carveout of CudaKernel for the kernels of a tick of so many rows."""
    # Blocks of the next kernels then have room beside those of one. A multiprocessor changes its share of shared memory
    # only when it is empty, so all kernels of a tick have the same; for more rows tiles need another.
    return FEW_ROWS_CARVEOUT if rows <= FEW_ROWS else None


@dataclass(frozen=True)
class Linear:
    """The macros that the sources of products share; they are documented there."""

    function: ClassVar[str]
    """Name of the kernel and of its source."""

    N: int
    K: int
    NORM: int = field(default=0, kw_only=True)
    GATED: int = field(default=0, kw_only=True)
    RESIDUAL: int = field(default=0, kw_only=True)
    BIAS: int = field(default=0, kw_only=True)
    FLOAT_OUT: int = field(default=0, kw_only=True)

    @property
    def source(self) -> str:
        return f"{self.function}.cu"

    @property
    def macros(self) -> dict[str, int]:
        return asdict(self)
