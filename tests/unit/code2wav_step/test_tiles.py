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
from code2wav_step.tiles import Tile, product_tile, unit_tile
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


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("columns", "channels", "width"), PRODUCTS)
def test_tile_depth_divides_the_channels(rows: int, columns: int, channels: int, width: int) -> None:
    tile = product_tile(rows, columns, channels, width)
    assert channels % tile.depth == 0
    assert tile.depth >= 16


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
