"""The specialisations of tile_linear.cu."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from qwen3_tts_engine.talker.kernels.linear import Linear

# Inputs of a step of the products.
STEP = 64
# Of shared memory: what a block may have, and what two blocks on a multiprocessor may have each.
SHARED_BYTES, PAIRED_BYTES = 200 * 1024, 113 * 1024
SWIZZLED_ROW, SEND_BYTES = 128, 16
# Of a sum of squares.
SUM_OUTPUTS = 64


class Tile(NamedTuple):
    """The macros of those names; `paired` allows two blocks on a multiprocessor."""

    rows: int
    groups: int = 1
    split: int = 1
    paired: bool = False


# For up to so many rows, by (rows of weights, inputs): the tile with which a layer was fastest, all its products in
# tile_linear (one H200, scripts/benchmarks/products). Where the last are missing, cuBLAS is faster.
MOST_ROWS = (32, 64, 128, 256, 512)
TILES = {
    (4096, 1024): (Tile(32, 1, 2, True), Tile(64), Tile(128, 1, 2), Tile(128), Tile(128, 2)),
    (6144, 1024): (Tile(32, 1, 4), Tile(64), Tile(128), Tile(128, 2), Tile(128, 3)),
    (1024, 2048): (Tile(32, 1, 4), Tile(64, 1, 4), Tile(128, 1, 4), Tile(64, 1, 2), Tile(128, 1, 2)),
    (1024, 3072): (Tile(32, 1, 4), Tile(64, 1, 4), Tile(128, 1, 4), Tile(64, 1, 2), Tile(128, 1, 2)),
    (4096, 2048): (Tile(32, 1, 2, True), Tile(64), Tile(128, 1, 2), Tile(128)),
    (2048, 2048): (Tile(32, 1, 2, True), Tile(64, 1, 4, True), Tile(64, 1, 2), Tile(128, 1, 2)),
    (12288, 2048): (Tile(32, paired=True), Tile(64, paired=True), Tile(128, 2), Tile(128, 3)),
    (2048, 6144): (Tile(32, 1, 4, True), Tile(64, 1, 2), Tile(64, 1, 2), Tile(128, 1, 2)),
}
# Of products without measurements.
OTHERS = (Tile(32), Tile(64), Tile(64), Tile(128), Tile(128))


@dataclass(frozen=True)
class TileLinear(Linear):
    function: ClassVar[str] = "tile_linear"

    ROWS: int
    GROUPS: int
    SPLIT: int
    STAGES: int

    @property
    def macros(self) -> dict[str, int]:
        return super().macros | {"RESIDENT": self.resident}

    @property
    def threads(self) -> int:
        return 128 * self.GROUPS + 32

    @property
    def cluster(self) -> int:
        return self.SPLIT

    @property
    def height(self) -> int:
        """Rows of weights of a block."""
        return 64 * self.GROUPS

    @property
    def outputs(self) -> int:
        """Of a block."""
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
        return 2 if self.shared_bytes <= PAIRED_BYTES and self.GROUPS < 3 else 1

    def blocks(self, rows: int) -> int:
        return self.N // self.outputs * math.ceil(rows / self.ROWS) * self.SPLIT


def tile_linear(outputs: int, inputs: int, rows: int, **flags: int) -> TileLinear | None:
    """The form for `rows`; None if no tile divides the product, or none is fast for so many rows."""
    tile = tile_of(outputs * (1 + flags.get("GATED", 0)), inputs, rows)
    return tile and with_stages(outputs, inputs, tile, **flags)


def tile_of(height: int, inputs: int, rows: int) -> Tile | None:
    """The tile for `rows` of x and a weight [height, inputs]."""
    tiles = TILES.get((height, inputs), OTHERS)
    tile = next((tile for most, tile in zip(MOST_ROWS, tiles, strict=False) if rows <= most), None)
    return tile if tile and height % (64 * tile.groups) == 0 and inputs % (tile.split * STEP) == 0 else None


def with_stages(outputs: int, inputs: int, tile: Tile, **flags: int) -> TileLinear | None:
    """As many stages as fit; None if not even two do."""
    rows, groups, split, paired = tile
    steps, memory = inputs // split // STEP, PAIRED_BYTES if paired else SHARED_BYTES
    made = [
        TileLinear(outputs, inputs, rows, groups, split, stages, **flags) for stages in range(min(2, steps), steps + 1)
    ]
    return next((form for form in reversed(made) if form.shared_bytes <= memory), None)
