"""The specialisations of tile_linear.cu."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from qwen3_tts_engine.talker.kernels.linear import LANES, Linear, by_rows

# Inputs of a step of the products.
STEP = 64
# Shared memory of a multiprocessor, and what the system takes of it for each block.
MULTIPROCESSOR_BYTES, SYSTEM_BYTES = 227 * 1024, 1024
# What a block may have, and what two blocks on a multiprocessor may have each.
SHARED_BYTES, PAIRED_BYTES = 200 * 1024, MULTIPROCESSOR_BYTES // 2 - SYSTEM_BYTES
SWIZZLED_ROW, SEND_BYTES = 128, 16
# A multiprocessor's schedulers, the registers of one, and those that a thread needs beside its sums.
SCHEDULERS, REGISTERS, OTHER_REGISTERS = 4, 1 << 14, 26
# Outputs that one sum of squares covers.
SUM_OUTPUTS = 64


class Tile(NamedTuple):
    """The macros of those names; `paired` allows two blocks on a multiprocessor."""

    rows: int
    groups: int = 1
    split: int = 1
    paired: bool = False
    twins: int = 1


# The tile with which a layer was fastest, all its products in tile_linear, by (rows of weights, inputs) and the most
# rows of x (one H200 or H100, scripts/lab/products). None where cuBLAS is faster, as it is beyond the last.
TILES: dict[tuple[int, int], dict[int, Tile | None]] = {
    (4096, 1024): {
        32: Tile(32, 1, 2, True), 64: Tile(64), 96: Tile(96), 128: Tile(64), 192: Tile(96, twins=2), 256: Tile(128),
        384: Tile(192, twins=2), 512: Tile(128, 2, twins=2), 768: Tile(192, 2), 1024: Tile(256, 2),
    },
    (6144, 1024): {
        32: Tile(32, 1, 2, True), 64: Tile(64), 96: Tile(96), 128: Tile(128), 192: Tile(96, 2, twins=2),
        256: Tile(64, 3, twins=2), 384: Tile(96, 3, twins=2), 512: Tile(128, 3, twins=2), 768: Tile(192, 3),
        1024: Tile(128, 3),
    },
    (1024, 2048): {
        32: Tile(32, 1, 4), 64: Tile(64, 1, 4), 96: Tile(96, 1, 4), 128: Tile(128, 1, 4), 256: Tile(64, 1, 2),
        384: Tile(96, 1, 2), 512: Tile(128, 1, 2), 768: Tile(96), 1024: Tile(64, 2, twins=2),
    },
    (1024, 3072): {
        32: Tile(32, 1, 4), 64: Tile(64, 1, 4), 96: Tile(96, 1, 4), 128: Tile(128, 1, 4), 256: Tile(64, 1, 2),
        384: Tile(96, 1, 2), 512: Tile(128, 1, 2), 768: Tile(96), 1024: Tile(128, twins=2),
    },
    (2048, 1024): {32: Tile(32), 128: Tile(64), 512: Tile(128), 768: Tile(192), 1024: Tile(128, 2)},
    (4096, 2048): {
        16: Tile(16, 1, 2, True), 32: Tile(32, 1, 2, True), 64: Tile(64, 1, 2), 96: Tile(96, 1, 2),
        128: Tile(128, 1, 2), 192: Tile(192, 1, 2), 256: Tile(128, twins=2), 320: Tile(160, twins=2), 384: Tile(192),
        512: Tile(128, 2, twins=2), 640: Tile(160, 2, twins=2),
    },
    (2048, 2048): {
        16: Tile(16, 1, 2, True), 32: Tile(32, 1, 2, True), 64: Tile(64, 1, 2), 96: Tile(64, twins=2),
        128: Tile(64, 1, 2), 192: Tile(96, 1, 2), 256: Tile(128, 1, 2), 320: Tile(160, 1, 2), 384: Tile(192, 1, 2),
        512: Tile(128, twins=2), 640: Tile(160),
    },
    (12288, 2048): {
        16: Tile(16, paired=True), 32: Tile(32, paired=True), 64: Tile(32, 3, twins=2), 96: Tile(64, 3, twins=2),
        128: Tile(64, 3, twins=2), 192: Tile(96, 3, twins=2), 256: Tile(128, 3, twins=2), 320: Tile(160, 3, twins=2),
        384: Tile(192, 3), 512: None, 640: Tile(160, 3),
    },
    (2048, 6144): {
        16: Tile(16, 1, 2, True), 32: Tile(32, 1, 4, True), 64: Tile(64, 1, 2), 96: Tile(96, 2, 4),
        128: Tile(64, 1, 2), 192: Tile(96, 1, 2), 256: Tile(128, 1, 2), 320: Tile(160, 1, 2), 384: Tile(192, 1, 2),
        512: Tile(128, twins=2), 640: Tile(160, 2, 2),
    },
}  # fmt: skip
# Tiles of products without measurements.
OTHERS: dict[int, Tile | None] = {32: Tile(32), 128: Tile(64), 512: Tile(128)}


@dataclass(frozen=True)
class TileLinear(Linear):
    function: ClassVar[str] = "tile_linear"
    carveout: ClassVar[int | None] = None

    ROWS: int
    GROUPS: int
    SPLIT: int
    STAGES: int
    TWINS: int = 1

    @property
    def macros(self) -> dict[str, int]:
        return super().macros | {"RESIDENT": self.resident}

    @property
    def threads(self) -> int:
        return 128 * self.GROUPS + 32

    @property
    def cluster(self) -> int:
        return self.SPLIT * self.TWINS

    @property
    def height(self) -> int:
        """Rows of weights of a block."""
        return 64 * self.GROUPS

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return self.height // (1 + self.GATED)

    @property
    def shared_bytes(self) -> int:
        """The staged operands; sums of other blocks; barriers; the scales of the norm."""
        stages = self.STAGES * (self.height + self.ROWS) * SWIZZLED_ROW
        received = (self.SPLIT - 1) * self.ROWS // self.SPLIT // 8 * 128 * self.GROUPS * SEND_BYTES
        return stages + received + 16 * self.STAGES + 16 + 4 * (self.ROWS // self.SPLIT)

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor for which the compiler limits registers."""
        return 2 if self.shared_bytes <= PAIRED_BYTES and self.compiles(2) else 1

    def compiles(self, resident: int) -> bool:
        """Whether so many blocks on a multiprocessor leave a thread registers for its sums."""
        warps = math.ceil(resident * self.threads / LANES / SCHEDULERS)
        return REGISTERS // (warps * LANES) // 8 * 8 >= self.ROWS // 2 + OTHER_REGISTERS

    def blocks(self, rows: int) -> int:
        return self.N // self.outputs * math.ceil(rows / (self.ROWS * self.TWINS)) * self.cluster


def tile_linear(outputs: int, inputs: int, rows: int, **flags: int) -> TileLinear | None:
    """The form for `rows`; None if no tile divides the product, or none is fast for so many rows."""
    tile = tile_of(outputs * (1 + flags.get("GATED", 0)), inputs, rows)
    return tile and with_stages(outputs, inputs, tile, **flags)


def tile_linears(outputs: int, inputs: int, **flags: int) -> set[TileLinear]:
    """The forms for all numbers of rows."""
    tiles = tiles_of(outputs * (1 + flags.get("GATED", 0)), inputs)
    return {form for rows in tiles if (form := tile_linear(outputs, inputs, rows, **flags))}


def tiles_of(height: int, inputs: int) -> dict[int, Tile | None]:
    """The entry of TILES for a weight [height, inputs], or OTHERS."""
    return TILES.get((height, inputs), OTHERS)


def tile_of(height: int, inputs: int, rows: int) -> Tile | None:
    """The tile for `rows` of x and a weight [height, inputs]."""
    tile = by_rows(tiles_of(height, inputs), rows, None)
    return tile if tile and height % (64 * tile.groups) == 0 and inputs % (tile.split * STEP) == 0 else None


def with_stages(outputs: int, inputs: int, tile: Tile, **flags: int) -> TileLinear | None:
    """The product with as many stages as fit; None if fewer than two fit, or the sums do not."""
    rows, groups, split, paired, twins = tile
    steps, memory = inputs // split // STEP, PAIRED_BYTES if paired else SHARED_BYTES
    made = [
        TileLinear(outputs, inputs, rows, groups, split, stages, twins, **flags)
        for stages in range(min(2, steps), steps + 1)
    ]
    return next((form for form in reversed(made) if form.shared_bytes <= memory and form.compiles(1)), None)
