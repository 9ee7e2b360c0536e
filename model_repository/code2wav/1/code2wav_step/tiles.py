"""Block sizes of the matrix products, from their shapes."""

from typing import NamedTuple

# Fewer programs leave multiprocessors idle.
ENOUGH_PROGRAMS = 120


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def programs(self, rows: int, columns: int) -> int:
        return -(-rows // self.rows) * -(-columns // self.columns)


# The best first, where there is work for all multiprocessors.
PRODUCT_TILES = (
    Tile(128, 128, 64, 8, 3),
    Tile(64, 128, 64, 4, 3),
    Tile(64, 64, 64, 4, 4),
    Tile(32, 64, 64, 4, 4),
    Tile(32, 32, 128, 4, 4),
)
SKINNY_TILE = Tile(16, 32, 128, 4, 4)
UNIT_ROWS = ((128, 8), (64, 4), (32, 4))


def product_tile(rows: int, columns: int, channels: int) -> Tile:
    """`depth` divides the channels."""
    tiles = (tile for tile in PRODUCT_TILES if tile.programs(rows, columns) >= ENOUGH_PROGRAMS)
    tile = next(tiles, PRODUCT_TILES[-1])
    if rows <= SKINNY_TILE.rows:
        tile = SKINNY_TILE
    return tile._replace(depth=divisor(channels, tile.depth))


def unit_tile(rows: int, channels: int) -> Tile:
    sizes = (size for size in UNIT_ROWS if -(-rows // size[0]) >= ENOUGH_PROGRAMS)
    count, warps = next(sizes, UNIT_ROWS[-1])
    return Tile(count, channels, divisor(channels, 64), warps, 3)


def divisor(channels: int, most: int) -> int:
    """The largest power of two up to `most` that divides the channels."""
    return min(channels & -channels, most)
