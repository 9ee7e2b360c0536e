"""Block sizes of the matrix products, from their shapes."""

from typing import NamedTuple

# Fewer programs leave multiprocessors idle.
ENOUGH_PROGRAMS = 90
# Shared memory per block of an H200; all tiles below fit.
H200_SHARED_BYTES = 227 * 1024
# Bytes of an FP16 value.
VALUE_BYTES = 2
# With fewer stages no load overlaps a product.
MIN_STAGES = 2


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def launch(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}

    def programs(self, rows: int, columns: int) -> int:
        return -(-rows // self.rows) * -(-columns // self.columns)

    def shared_bytes(self, matrices: int) -> int:
        """Shared memory of a program that multiplies its rows by `matrices` at once: the steps under way.

        wgmma and tcgen05 hold one step more; GPUs that have them have 227 KiB, which all tiles fit.
        """
        return (self.stages - 1) * self.depth * (self.rows + matrices * self.columns) * VALUE_BYTES


# Measured on an H200. The best first, given work for all multiprocessors.
PRODUCT_TILES = (
    Tile(128, 128, 64, 8, 3),
    Tile(64, 128, 64, 4, 4),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(64, 32, 128, 4, 4),
    Tile(32, 32, 128, 4, 4),
)
# The width from which on the first tile pays off its longer start-up.
LONG_WIDTH = 768
SKINNY_TILE = Tile(16, 32, 256, 4, 3)
# With so many columns there are enough programs of 64.
WIDE_SKINNY_TILE, WIDE_COLUMNS = Tile(16, 64, 256, 4, 4), 4096
SKINNY_ROWS = 64
# Short products have one stage less: more programs share a multiprocessor.
SHORT_STAGES = 3
UNIT_TILES = (Tile(128, 0, 64, 4, 3), Tile(64, 0, 64, 4, 3), Tile(32, 0, 64, 4, 3))
# Sums of one program: 96 for each thread.
MAX_UNIT_SUMS = 96 * 128


def product_tile(
    rows: int, columns: int, channels: int, width: int, *, matrices: int = 1, shared_bytes: int = H200_SHARED_BYTES
) -> Tile:
    """The tile for a result of `rows` x `columns`, summed over `width`. The depth divides the channels.

    A gated product has two matrices. `shared_bytes` is the GPU's limit per block: a tile that exceeds it gets fewer
    stages, then shorter steps.
    """
    tile = _measured_tile(rows, columns, channels, width)
    while tile.shared_bytes(matrices) > shared_bytes:
        fewer = {"stages": tile.stages - 1} if tile.stages > MIN_STAGES else {"depth": tile.depth // 2}
        tile = tile._replace(**fewer)
    return tile


def _measured_tile(rows: int, columns: int, channels: int, width: int) -> Tile:
    if rows <= SKINNY_ROWS:
        return _fitting(SKINNY_TILE if columns < WIDE_COLUMNS else WIDE_SKINNY_TILE, channels)
    tiles = [tile for tile in PRODUCT_TILES if columns % min(tile.columns, columns) == 0 or tile.columns <= 64]
    if width < LONG_WIDTH:
        tiles = [tile._replace(stages=SHORT_STAGES) for tile in tiles if tile.warps == 4]
    enough = (tile for tile in tiles if tile.programs(rows, columns) >= ENOUGH_PROGRAMS)
    return _fitting(next(enough, tiles[-1]), channels)


def _fitting(tile: Tile, channels: int) -> Tile:
    return tile._replace(depth=divisor(channels, tile.depth))


def unit_tile(rows: int, channels: int) -> Tile:
    """A program computes all channels of its rows."""
    tiles = [tile._replace(columns=channels) for tile in UNIT_TILES if tile.rows * channels <= MAX_UNIT_SUMS]
    enough = (tile for tile in tiles if tile.programs(rows, channels) >= ENOUGH_PROGRAMS)
    return _fitting(next(enough, tiles[-1]), channels)


def divisor(channels: int, limit: int) -> int:
    """The largest power of two up to `limit` that divides the channels."""
    return min(channels & -channels, limit)
