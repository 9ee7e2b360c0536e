"""The specialisations of skinny_linear.cu."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from qwen3_tts_engine.talker.kernels.linear import LANES, Linear, carveout

# Registers per thread for weights, by warps per block: half of those available at full occupancy.
WEIGHT_REGISTERS = {4: 128, 8: 128, 16: 64}
# Between the sums of two rows.
PADDING = 4
# Fewer blocks leave too many multiprocessors idle.
MIN_BLOCKS = 64


@dataclass(frozen=True)
class SkinnyLinear(Linear):
    function: ClassVar[str] = "skinny_linear"
    cluster: ClassVar[int] = 1

    HALVES: int

    @property
    def macros(self) -> dict[str, int]:
        return super().macros | {"WARPS": self.warps, "TILES": self.tiles, "ROUNDS": self.rounds}

    @property
    def carveout(self) -> int | None:
        return carveout(self.rows)

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def rows(self) -> int:
        """Rows of x of a block."""
        return 8 * self.HALVES

    @property
    def blocks(self) -> int:
        return self.N // (8 * self.tiles * self.rounds)

    @property
    def shared_bytes(self) -> int:
        """Partial sums, and sums of squares, of every warp in float32."""
        return 4 * self.warps * self.rows * (8 * self.tiles * (1 + self.GATED) + PADDING + 1)

    @cached_property
    def warps(self) -> int:
        """More warps read the weights in fewer steps; fewer warps leave each the registers for many rows."""
        warps = 16 if self.K >= 2048 else 8
        if self.HALVES == 4:
            warps = 4 if self.K <= 1024 else 8 if self.N >= 4096 else 16
        while self.K % (warps * LANES):
            warps //= 2
        return warps

    @cached_property
    def tiles(self) -> int:
        """As many outputs per block as fit its registers, since each block reads the rows of x once."""
        registers = 4 * (1 + self.GATED) * (self.K // self.warps // LANES)
        tiles = 1
        while tiles < 4 and registers * tiles * 2 <= WEIGHT_REGISTERS.get(self.warps, 128) and self._divides(tiles * 2):
            tiles *= 2
        return tiles

    @cached_property
    def rounds(self) -> int:
        """Two where registers do not suffice for a second tile, so that fewer blocks read the rows of x."""
        return 2 if self.HALVES == 1 and self.tiles == 1 and self._divides(2) else 1

    def _divides(self, tiles: int) -> bool:
        return self.N % (8 * tiles) == 0 and self.N // (8 * tiles) >= MIN_BLOCKS
