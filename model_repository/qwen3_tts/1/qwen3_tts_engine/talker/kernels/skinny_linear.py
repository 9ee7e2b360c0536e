"""The specialisations of skinny_linear.cu."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from qwen3_tts_engine.talker.kernels.linear import LANES, Linear, carveout


class Block(NamedTuple):
    """The macros of those names."""

    warps: int
    tiles: int


# The block with which a layer was fastest, by (rows of weights, inputs) and HALVES (one H200,
# scripts/lab/products). Few blocks are, since those of the next kernels then load their weights on the other
# multiprocessors.
BLOCKS: dict[tuple[int, int], dict[int, Block]] = {
    (4096, 1024): {1: Block(8, 8), 2: Block(4, 2)},
    (1024, 2048): {1: Block(16, 4)},
    (6144, 1024): {1: Block(8, 6)},
    (1024, 3072): {1: Block(24, 2), 2: Block(12, 2)},
    (12288, 2048): {1: Block(16, 3)},
    (2048, 6144): {1: Block(16, 2)},
}
# Limits for other products and other GPUs, some of which have few multiprocessors: registers per thread for weights,
# half of those available at full occupancy, by warps per block; and blocks.
WEIGHT_REGISTERS = {4: 128, 8: 128, 16: 64}
MIN_BLOCKS = 64
# Between the sums of two rows.
PADDING = 4


@dataclass(frozen=True)
class SkinnyLinear(Linear):
    function: ClassVar[str] = "skinny_linear"
    cluster: ClassVar[int] = 1

    HALVES: int
    WARPS: int
    TILES: int

    @property
    def carveout(self) -> int | None:
        return carveout(self.rows)

    @property
    def threads(self) -> int:
        return LANES * self.WARPS

    @property
    def rows(self) -> int:
        """Rows of x of a block."""
        return 8 * self.HALVES

    @property
    def blocks(self) -> int:
        return self.N // (8 * self.TILES)

    @property
    def weight_registers(self) -> int:
        """Registers of a thread for its part of the block's weights."""
        return 4 * (1 + self.GATED) * self.TILES * (self.K // self.WARPS // LANES)

    @property
    def shared_bytes(self) -> int:
        """Partial sums, and sums of squares, of every warp in float32."""
        return 4 * self.WARPS * self.rows * (8 * self.TILES * (1 + self.GATED) + PADDING + 1)


def skinny_linear(outputs: int, inputs: int, rows: int, *, hopper: bool, **flags: int) -> SkinnyLinear:
    """The form for `rows`; `hopper` is whether the GPU is like the one of the measurements."""
    halves, gated = halves_of(rows), flags.get("GATED", 0)
    measured = BLOCKS.get((outputs * (1 + gated), inputs), {}).get(halves) if hopper else None
    return SkinnyLinear(outputs, inputs, halves, *(measured or _fitting(outputs, inputs, halves, gated)), **flags)


def halves_of(rows: int) -> int:
    """HALVES for `rows` of x."""
    return 1 if rows <= 8 else 2


def _fitting(outputs: int, inputs: int, halves: int, gated: int) -> Block:
    # More warps read the weights in fewer steps; fewer warps leave each the registers for many rows.
    warps = 16 if inputs >= 2048 else 8
    while inputs % (warps * LANES):
        warps //= 2
    # As many outputs per block as fit its registers, since each block reads the rows of x once.
    tiles, tile = 1, SkinnyLinear(outputs, inputs, halves, warps, 1, GATED=gated)
    most = min(4, WEIGHT_REGISTERS.get(warps, 128) // tile.weight_registers, tile.blocks // MIN_BLOCKS)
    while tiles * 2 <= most and outputs % (16 * tiles) == 0:
        tiles *= 2
    return Block(warps, tiles)
