"""The specialisations of streamed_product.cu, and when they are faster than the Triton kernels."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

ROWS, DEPTH = 64, 64
GROUP = 128
# Bytes of a multiprocessor for its one block; stages of a ring; bytes of the barriers in front of the vectors.
SHARED_BYTES, MAX_STAGES, BARRIER_BYTES = 227 * 1024, 8, 256
ALIGNMENT = 1024


@dataclass(frozen=True)
class StreamedProduct:
    """`groups` warpgroups compute 64 rows of `columns` each; a copy of 64 channels serves `taps_per_copy` taps."""

    source: ClassVar[str] = "streamed_product.cu"
    function: ClassVar[str] = "product"

    columns: int
    groups: int
    taps_per_copy: int
    dilation: int
    unit: bool = False

    @property
    def macros(self) -> dict[str, int]:
        return {"COLUMNS": self.columns, "GROUPS": self.groups, "UNIT": int(self.unit)}

    @property
    def threads(self) -> int:
        return GROUP * (self.groups + 1)

    @property
    def x_stages(self) -> int:
        return {1: 4, 2: 3}.get(self.taps_per_copy, 2)

    @property
    def w_stages(self) -> int:
        return min(MAX_STAGES, (SHARED_BYTES - self._before_weights) // self._w_stage)

    @property
    def shared_bytes(self) -> int:
        return self._before_weights + self.w_stages * self._w_stage

    @property
    def _w_stage(self) -> int:
        return self.columns * DEPTH * 2

    @property
    def _before_weights(self) -> int:
        """Barriers, two sets of vectors, and the rings of rows."""
        vectors = 2 * (6 if self.unit else 3) * self.columns * 4
        rows = ROWS + (self.taps_per_copy - 1) * self.dilation
        stage = -(-rows // 8) * 8 * DEPTH * 2
        return -(-(BARRIER_BYTES + vectors) // ALIGNMENT) * ALIGNMENT + self.groups * self.x_stages * stage


class Cost(NamedTuple):
    """Microseconds of a step of 64 channels where a copy serves all taps, or one tap; and of the rest of a tile."""

    columns: int
    groups: int
    step: float
    step_by_tap: float
    rest: float

    def microseconds(self, rows: int, outputs: int, steps: int, processors: int, *, by_tap: bool = False) -> float:
        rounds = -(-tiles(rows, outputs, self.columns, self.groups) // processors)
        return rounds * (steps * (self.step_by_tap if by_tap else self.step) + self.rest)


# Fitted to measurements on an H200 (docs/lab/codec.md, Kernels of the codec in CUDA).
COSTS = (
    Cost(192, 3, 0.70, 0.82, 5.5),
    Cost(192, 2, 0.50, 0.75, 4.0),
    Cost(96, 3, 0.38, 0.65, 3.0),
    Cost(96, 2, 0.33, 0.60, 2.5),
)
UNIT_COST = Cost(192, 2, 0.50, 0.75, 7.0)
# Microseconds of a unit as two products: per call and per row.
PRODUCTS_CALL, PRODUCTS_ROW = 6.0, 0.0013
# Operations that the Triton kernels do in a microsecond, for long widths and short ones.
LONG_WIDTH = 1536
TRITON_LONG, TRITON_SHORT = 450e6, 250e6


def product_form(
    rows: int, positions: int, outputs: int, channels: int, taps: int, dilation: int, processors: int
) -> StreamedProduct | None:
    """The fastest for a product; None if it is not supported, or the Triton kernel is faster."""
    if channels % DEPTH:
        return None
    taps_per_copy = _taps_per_copy(positions, taps)
    steps = taps * channels // DEPTH

    def microseconds(cost: Cost) -> float:
        return cost.microseconds(rows, outputs, steps, processors, by_tap=taps_per_copy != taps)

    fitting = [cost for cost in COSTS if outputs % cost.columns == 0]
    best = min(fitting, key=microseconds, default=None)
    speed = TRITON_LONG if taps * channels >= LONG_WIDTH else TRITON_SHORT
    if best is None or microseconds(best) > 2 * rows * outputs * taps * channels / speed:
        return None
    return StreamedProduct(best.columns, best.groups, taps_per_copy, dilation)


def unit_form(
    rows: int, positions: int, channels: int, taps: int, dilation: int, processors: int
) -> StreamedProduct | None:
    """The form for a unit, None where two products are faster; see product_form."""
    if channels != UNIT_COST.columns or _taps_per_copy(positions, taps) != taps:
        return None
    microseconds = UNIT_COST.microseconds(rows, channels, (taps + 1) * channels // DEPTH, processors)
    if microseconds > PRODUCTS_CALL + PRODUCTS_ROW * rows:
        return None
    return StreamedProduct(UNIT_COST.columns, UNIT_COST.groups, taps, dilation, unit=True)


def tiles(rows: int, outputs: int, columns: int, groups: int) -> int:
    return -(-rows // (ROWS * groups)) * (outputs // columns)


def in_columns(weight: Tensor, taps: int, *, ordered: bool = False) -> Tensor:
    """A weight [outputs, taps x channels] as the kernel reads it, [taps, channels / 8, outputs, 8].

    Outputs are in the order of fragments.cuh; `ordered`, in their own.
    """
    outputs = torch.arange(len(weight), device=weight.device)
    if not ordered:
        outputs = outputs // 32 * 32 + outputs % 8 // 2 * 8 + outputs % 32 // 8 * 2 + outputs % 2
    return weight[outputs].view(len(weight), taps, -1, 8).permute(1, 2, 0, 3).contiguous()


def _taps_per_copy(positions: int, taps: int) -> int:
    return taps if positions % ROWS == 0 else 1
