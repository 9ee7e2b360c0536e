"""Block sizes of the codec's kernels: they fit the shapes and compile to kernels without data races."""

import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from code2wav_step.kernels import resident_unit
from code2wav_step.kernels.resident_unit import ResidentUnit
from code2wav_step.tiles import WIDE_SKINNY_TILE, Tile, product_tile, unit_tile
from tests.subprocesses import same_imports

ROWS = (1, 4, 16, 64, 65, 160, 512, 4096, 40960, 983040)
# Columns, channels and width of each kind of product in the released codec.
PRODUCTS = [
    (3072, 512, 512),
    (1024, 4096, 4096),
    (1536, 1024, 7168),
    (1920, 768, 1536),
    (384, 384, 384),
    (288, 192, 384),
]
ROOT = Path(__file__).parents[3]
# Shared memory per block of an H200, an A100 and an L4.
H200, A100, L4 = (kibibytes * 1024 for kibibytes in (227, 163, 99))
# Rows, product and its tile: measured on an H200.
MEASURED = [
    (64, (3072, 512, 512), Tile(16, 32, 256, 4, 3)),
    (64, (4096, 1024, 1024), Tile(16, 64, 256, 4, 4)),
    (65, (1024, 4096, 4096), Tile(32, 32, 128, 4, 4)),
    (160, (3072, 512, 512), Tile(128, 64, 64, 4, 3)),
    (160, (1536, 1024, 7168), Tile(64, 32, 128, 4, 4)),
    (512, (1920, 768, 1536), Tile(64, 128, 64, 4, 4)),
    (512, (384, 384, 384), Tile(64, 32, 128, 4, 3)),
    (4096, (1536, 1024, 7168), Tile(128, 128, 64, 8, 3)),
]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("columns", "channels", "width"), PRODUCTS)
def test_tile_depth_divides_the_channels(rows: int, columns: int, channels: int, width: int) -> None:
    tile = product_tile(rows, columns, channels, width)
    assert channels % tile.depth == 0
    assert tile.depth >= 16


@pytest.mark.parametrize(("rows", "product", "tile"), MEASURED)
def test_an_h200_has_the_measured_tile(rows: int, product: tuple[int, int, int], tile: Tile) -> None:
    assert product_tile(rows, *product) == product_tile(rows, *product, shared_bytes=H200) == tile


@pytest.mark.parametrize(
    ("product", "matrices"), [*((product, 1) for product in (*PRODUCTS, (4096, 1024, 1024))), ((1024, 512, 512), 2)]
)
@pytest.mark.parametrize("rows", ROWS)
def test_only_tiles_that_exceed_the_shared_memory_change(
    rows: int, product: tuple[int, int, int], matrices: int
) -> None:
    measured = product_tile(rows, *product, matrices=matrices, shared_bytes=1 << 30)
    for shared_bytes in (H200, A100, L4):
        tile = product_tile(rows, *product, matrices=matrices, shared_bytes=shared_bytes)
        assert tile.shared_bytes(matrices) <= shared_bytes
        assert (tile == measured) == (measured.shared_bytes(matrices) <= shared_bytes)
        assert shared_bytes == L4 or tile == measured


def test_a_tile_loses_stages_before_depth() -> None:
    product = (64, 4096, 1024, 1024)
    assert product_tile(*product, shared_bytes=L4) == WIDE_SKINNY_TILE._replace(stages=3)
    assert product_tile(*product, shared_bytes=48 * 1024) == WIDE_SKINNY_TILE._replace(stages=2)
    assert product_tile(*product, shared_bytes=32 * 1024) == WIDE_SKINNY_TILE._replace(stages=2, depth=128)


@pytest.mark.parametrize("channels", [96, 192])
@pytest.mark.parametrize("rows", ROWS)
def test_a_unit_tile_spans_all_channels(rows: int, channels: int) -> None:
    tile = unit_tile(rows, channels)
    assert tile.programs(rows, channels) == -(-rows // tile.rows)
    assert channels % tile.depth == 0


def test_program_count_rounds_up() -> None:
    assert Tile(64, 128, 64, 4, 4).programs(65, 129) == 4


def test_resident_units_need_whole_tiles_and_fit_a_multiprocessor() -> None:
    assert resident_unit.fits(96, 1920)
    assert not resident_unit.fits(96, 37)
    assert not resident_unit.fits(192, 640)
    assert all(ResidentUnit(7, dilation).shared_bytes <= 232_448 for dilation in (1, 3, 9))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="Triton carries NVIDIA's assembler for x86-64 only")
def test_no_buffer_is_overwritten_while_a_matrix_product_reads_it() -> None:
    environment = same_imports()
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.fakes.compiled_products"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    found = json.loads(output)
    assert found
    assert {variant: problems for variant, problems in found.items() if problems} == {}
