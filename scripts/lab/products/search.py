"""Which tiles make a layer fastest, and a line of the table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qwen3_tts_engine.talker.kernels.skinny_linear import Block
from qwen3_tts_engine.talker.kernels.tile_linear import Tile

REPEATS = 3
Choice = Tile | Block
# Microseconds a layer with these choices, by product, measured so often.
LayerTime = Callable[[Mapping[str, Choice], int], float]
Changes = dict[str, dict[str, float]]


@dataclass
class Found:
    """Microseconds a layer; `changes` are those by a tile instead of the one before, by product and tile."""

    stack: str
    rows: int
    cublas_us: float
    served_us: float
    best_us: float
    tiles: dict[str, str]
    changes: Changes


def descend(
    layer_us: LayerTime, start: Mapping[str, Choice], options: Mapping[str, Sequence[Choice]]
) -> tuple[dict[str, Choice], Changes]:
    """Takes the fastest tile for one product after the other, all others staying."""
    chosen, best, found = dict(start), layer_us(start, REPEATS), Changes()
    for product, tiles in options.items():
        changes = {tile: layer_us(chosen | {product: tile}, 1) - best for tile in tiles}
        found[product] = {text(tile): round(change, 2) for tile, change in changes.items()}
        fastest = min(changes, key=lambda tile: changes[tile])
        if changes[fastest] < 0:
            chosen[product], best = fastest, best + changes[fastest]
    return chosen, found


def text(tile: Choice) -> str:
    if isinstance(tile, Block):
        return f"{tile.warps} warps x {8 * tile.tiles}"
    return (
        f"{tile.rows}x{64 * tile.groups}"
        + f"/{tile.split}" * (tile.split > 1)
        + "p" * tile.paired
        + "t" * (tile.twins > 1)
    )


def line(found: Found) -> dict[str, str]:
    return {
        "layers of": found.stack,
        "rows": str(found.rows),
        "cuBLAS, us a layer": f"{found.cublas_us:.2f}",
        "served": f"{found.served_us:.2f}",
        "best": f"{found.best_us:.2f}",
        "tiles": ", ".join(f"{product} {tile}" for product, tile in found.tiles.items()),
    }
