"""The search for tiles: candidates that fit, the fastest for each product, and the table."""

from collections.abc import Mapping

import pytest

from qwen3_tts_engine.talker.kernels.skinny_linear import BLOCKS, Block
from qwen3_tts_engine.talker.kernels.tile_linear import STEP, TILES, Tile
from scripts.lab.products.candidates import blocks, candidates
from scripts.lab.products.search import Choice, Found, descend, line, text

HOPPER_BYTES = 227 * 1024
GATED = {"NORM": 1, "GATED": 1}


@pytest.mark.parametrize(("height", "inputs"), TILES)
@pytest.mark.parametrize("rows", [16, 32, 64, 100, 256, 512])
def test_candidates_divide_their_product_and_fit_a_multiprocessor(height: int, inputs: int, rows: int) -> None:
    found = candidates(height, inputs, rows, 7, NORM=1)
    assert sum(tile.twins == 1 for tile in found) == 7
    assert all(tile.split == 1 and tile.rows < rows for tile in found if tile.twins > 1)
    for tile, form in found.items():
        assert form.N % form.outputs == form.K % (form.SPLIT * STEP) == form.ROWS % (8 * form.SPLIT) == 0, form
        assert form.resident * (form.shared_bytes + 1024) <= HOPPER_BYTES, form
        assert (*tile[:3], tile.twins) == (form.ROWS, form.GROUPS, form.SPLIT, form.TWINS)


@pytest.mark.parametrize(("height", "inputs"), TILES)
def test_a_served_tile_is_among_nine_candidates(height: int, inputs: int) -> None:
    flags = GATED if height > 4096 else {}
    for rows, served in TILES[height, inputs].items():
        made = candidates(height // (1 + len(flags) // 2), inputs, rows, 9, **flags)
        found = {(*tile[:3], tile.twins) for tile in made}
        assert served is None or (*served[:3], served.twins) in found, rows


@pytest.mark.parametrize(("height", "inputs"), BLOCKS)
def test_a_served_block_is_among_those_that_fit(height: int, inputs: int) -> None:
    flags = GATED if height > 4096 else {}
    for halves, served in BLOCKS[height, inputs].items():
        made = blocks(height // (1 + len(flags) // 2), inputs, 8 * halves, **flags)
        assert served in made
        assert all((*block, halves) == (form.WARPS, form.TILES, form.HALVES) for block, form in made.items())


def test_the_search_takes_the_fastest_tile_of_each_product_beside_the_others() -> None:
    narrow, wide, split = Tile(32), Tile(64), Tile(64, 1, 2)
    costs: dict[Choice, float] = {narrow: 3.0, wide: 2.0, split: 2.5}

    def layer_us(tiles: Mapping[str, Choice], repeats: int) -> float:
        # Two wide tiles wait for each other.
        return sum(costs[tile] for tile in tiles.values()) + 2.0 * (list(tiles.values()).count(wide) > 1)

    tiles, changes = descend(layer_us, {"a": narrow, "b": narrow}, {"a": [wide, split], "b": [narrow, wide, split]})
    assert tiles == {"a": wide, "b": split}
    assert changes == {"a": {"64x64": -1.0, "64x64/2": -0.5}, "b": {"32x64": 0.0, "64x64": 1.0, "64x64/2": -0.5}}


def test_a_product_keeps_its_tile_where_none_is_faster() -> None:
    costs: dict[Choice, float] = {Tile(rows): rows for rows in (32, 64, 96)}
    tiles, _ = descend(lambda tiles, repeats: costs[tiles["a"]], {"a": Tile(32)}, {"a": [Tile(64), Tile(96)]})
    assert tiles == {"a": Tile(32)}


def test_a_line_names_times_and_tiles() -> None:
    choices = Tile(64, 2, 4), Tile(32, paired=True), Tile(32, twins=2), Block(16, 4)
    assert [text(choice) for choice in choices] == ["64x128/4", "32x64p", "32x64t", "16 warps x 32"]
    found = Found("predictor", 64, 32.2, 20.951, 20.949, {"qkv": "64x64", "out": "64x64/4"}, {})
    assert list(line(found).values()) == ["predictor", "64", "32.20", "20.95", "20.95", "qkv 64x64, out 64x64/4"]
