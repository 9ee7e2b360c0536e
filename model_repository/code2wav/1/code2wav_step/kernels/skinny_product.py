"""The specialisations of skinny_product.cu."""

from dataclasses import dataclass
from typing import ClassVar

MAX_ROWS, CHANNELS = 64, 32
LANES, MAX_WARPS, SLICE = 32, 16, 32
TILE, OCTET = 8, 8
# Fewer would leave multiprocessors idle.
MIN_BLOCKS = 96
# Registers of a thread for weights: half of its maximum.
WEIGHT_REGISTERS = 64


@dataclass(frozen=True)
class SkinnyProduct:
    source: ClassVar[str] = "skinny_product.cu"
    function: ClassVar[str] = "skinny_product"

    outputs: int
    channels: int
    taps: int
    octets: int
    norm: bool = False
    activation: str = "none"

    @property
    def macros(self) -> dict[str, int]:
        shape = {"OUTPUTS": self.outputs, "CHANNELS": self.channels, "TAPS": self.taps}
        blocks = {"TILES": self.tiles, "OCTETS": self.octets, "WARPS": self.warps, "NORM": int(self.norm)}
        return shape | blocks | {"GATED": int(self.activation == "gated"), "GELU": int(self.activation == "gelu")}

    @property
    def warps(self) -> int:
        slices = self.taps * self.channels // SLICE
        return max(warps for warps in range(1, MAX_WARPS + 1) if slices % warps == 0)

    @property
    def tile_registers(self) -> int:
        """Registers of a thread for its part of a tile's weights."""
        return 4 * (self.taps * self.channels // SLICE // self.warps) * self._matrices

    @property
    def tiles(self) -> int:
        """Tiles of a block: as many as leave enough blocks and fit the registers."""
        all_tiles, most = self.outputs // TILE, WEIGHT_REGISTERS // self.tile_registers
        fitting = (tiles for tiles in range(min(most, all_tiles), 0, -1) if all_tiles % tiles == 0)
        return next((tiles for tiles in fitting if all_tiles // tiles >= MIN_BLOCKS), 1)

    def blocks(self, rows: int) -> int:
        return self.outputs // TILE // self.tiles * -(-rows // (OCTET * self.octets))

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def shared_bytes(self) -> int:
        """Sums of each warp, and sums of squares."""
        columns = TILE * self.tiles * self._matrices + 4
        return self.warps * OCTET * self.octets * (columns + int(self.norm)) * 4

    @property
    def _matrices(self) -> int:
        return 2 if self.activation == "gated" else 1


def skinny_form(
    rows: int, outputs: int, channels: int, taps: int, *, norm: bool, activation: str
) -> SkinnyProduct | None:
    """The form for so few rows; None for more, or where channels, outputs or the width do not fit."""
    if rows > MAX_ROWS or channels % CHANNELS or outputs % TILE:
        return None
    octets = next((octets for octets in (1, 2) if rows <= OCTET * octets), 4)
    form = SkinnyProduct(outputs, channels, taps, octets, norm, activation)
    return form if form.tile_registers <= WEIGHT_REGISTERS else None
