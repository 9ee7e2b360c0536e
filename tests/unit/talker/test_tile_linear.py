"""tile_linear.cu on the CPU, in an emulator of warpgroups and clusters; tests/gpu runs it on a GPU. And its tiles."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from qwen3_tts_engine.talker.kernels.tile_linear import (
    OTHERS,
    PAIRED_BYTES,
    SHARED_BYTES,
    STEP,
    TILES,
    Tile,
    TileLinear,
    tile_linear,
    with_stages,
)
from tests.fakes.cuda.compiler import mutated
from tests.fakes.cuda.emulated import KERNELS, error

pytestmark = pytest.mark.long

# Rows of x; outputs, inputs, ROWS, GROUPS, SPLIT, STAGES and the epilogue.
CASES = {
    "norm": (20, TileLinear(128, 512, 32, 1, 2, 3, NORM=1)),
    "gated": (70, TileLinear(64, 256, 64, 2, 1, 3, NORM=1, GATED=1)),
    "gated, split": (40, TileLinear(64, 512, 64, 1, 2, 3, NORM=1, GATED=1)),
    "residual": (33, TileLinear(64, 1024, 32, 1, 4, 3, RESIDUAL=1)),
    "residual of two groups": (100, TileLinear(128, 256, 64, 2, 2, 2, RESIDUAL=1)),
    "logits": (32, TileLinear(128, 512, 32, 1, 2, 3, NORM=1, FLOAT_OUT=1)),
    "bias": (17, TileLinear(64, 512, 32, 1, 2, 4, NORM=1, BIAS=1)),
    "few rows": (9, TileLinear(64, 512, 16, 1, 2, 4, NORM=1)),
    "shared weights": (70, TileLinear(64, 448, 32, 1, 1, 3, 2, NORM=1)),
    "shared weights, gated": (40, TileLinear(64, 256, 32, 2, 1, 2, 2, NORM=1, GATED=1)),
    "shared weights of four": (100, TileLinear(64, 320, 32, 1, 1, 2, 4, RESIDUAL=1)),
    "norm of more rows than threads": (180, TileLinear(64, 192, 192, 1, 1, 3, NORM=1)),
}
MUTATIONS = {
    "copies are not waited for": ("        await(full + 8 * stage, phase);\n", ""),
    "a stage is refilled while it is used": (
        "                await(empty + 8 * stage, (step / STAGES - 1) % 2);\n",
        "",
    ),
    "a stage is refilled while a twin uses it": (
        "lane < TWINS) arrive_in(in_block(empty + 8 * used, lane));",
        "lane < TWINS) arrive(empty + 8 * used);",
    ),
    "a twin is told after it has ended": ("step - 1 + STAGES < STEPS && ", ""),
    "a twin is sent weights before its barriers are prepared": (
        "        if (CLUSTER > 1) wait_for_cluster();\n        // A lane",
        "        // A lane",
    ),
    "sums are sent before barriers are prepared": (
        "    if (CLUSTER > 1) wait_for_cluster();\n    wait_for_previous();\n",
        "    wait_for_previous();\n",
    ),
    "a stage is released while it is used": ("arrive(empty + 8 * used)", "arrive(empty + 8 * stage)"),
    "sums are used before the products end": ("    wait_for_products(0);\n", ""),
    "results replace what others still multiply": ("    meet_at(1, MULTIPLIERS);\n", ""),
    "sums of other blocks are not waited for": ("        await(complete, 0);\n", ""),
    "results of other warps are not waited for": ("    meet_at(2 + group, GROUP);\n", ""),
}
# (outputs, inputs, flags) of the products of both released sizes.
PRODUCTS = [
    (outputs // (1 + flags.get("GATED", 0)), inputs, flags)
    for outputs, inputs in [*TILES, (3072, 1024), (3072, 2048)]
    for flags in ({"NORM": 1}, {"NORM": 1, "GATED": 1}, {"NORM": 1, "FLOAT_OUT": 1}, {"RESIDUAL": 1})
]
SOURCE = KERNELS / "tile_linear.cu"
HOPPER_BYTES = 227 * 1024
requires_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")


@requires_compiler
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_in_whatever_order_its_threads_run(tmp_path: Path, name: str) -> None:
    rows, form = CASES[name]
    found = error(form, rows, SOURCE.read_text(), tmp_path)
    assert found is not None
    assert found < (1e-6 if form.FLOAT_OUT else 1.2e-2 if form.GATED else 8e-3)


@requires_compiler
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_kernel_that_does_not_wait(tmp_path: Path, name: str) -> None:
    source = mutated(SOURCE.read_text(), MUTATIONS[name])
    split = 2 if "sums are sent" in name or "other blocks" in name else 1
    twins = 2 if "twin" in name else 1
    form = TileLinear(128, 448 * split, 32, 2, split, 3, twins, RESIDUAL=1)
    found = error(form, 32 * twins, source, tmp_path)
    assert found is None or found > 0.05


def test_a_tile_divides_its_product_and_fits_a_multiprocessor() -> None:
    for outputs, inputs, flags in PRODUCTS:
        rows = TILES.get((outputs * (1 + flags.get("GATED", 0)), inputs), OTHERS)
        forms = [form for most in rows if (form := tile_linear(outputs, inputs, most, **flags))]
        assert len(forms) == sum(tile is not None for tile in rows.values())
        for form in forms:
            steps = form.K // form.SPLIT // STEP
            assert form.N % form.outputs == form.K % (form.SPLIT * STEP) == form.ROWS % (8 * form.SPLIT) == 0, form
            assert form.resident * (form.shared_bytes + 1024) <= HOPPER_BYTES, form
            assert min(2, steps) <= form.STAGES <= steps, form


def test_where_a_product_has_no_tile_is_a_gap_or_beyond_the_last() -> None:
    assert tile_linear(4096, 1024, 1024)
    assert not tile_linear(4096, 1024, 1025)
    assert tile_linear(6144, 2048, 384, GATED=1)
    assert not tile_linear(6144, 2048, 385, GATED=1)
    assert tile_linear(6144, 2048, 640, GATED=1)


@pytest.mark.parametrize(("rows", "groups"), [(256, 3), (192, 3), (160, 2)])
def test_sums_that_do_not_fit_the_registers_have_no_form(rows: int, groups: int) -> None:
    form = with_stages(6144, 2048, Tile(rows, groups), GATED=1)
    assert (form is None) == (rows == 256)
    assert form is None or form.resident == 1


def test_a_shape_that_no_tile_divides_is_left_to_other_kernels() -> None:
    assert tile_linear(256, 128, 20)
    assert not tile_linear(96, 128, 20)
    assert not tile_linear(256, 96, 20)


@pytest.mark.parametrize(("paired", "limit"), [(False, SHARED_BYTES), (True, PAIRED_BYTES)])
def test_a_tile_has_as_many_stages_as_fit(paired: bool, limit: int) -> None:
    form = with_stages(1024, 6144, Tile(64, paired=paired))
    assert form is not None
    assert form.shared_bytes <= limit < form.shared_bytes + (64 + 64) * STEP * 2


def test_macros_are_those_of_the_source() -> None:
    documented = set(re.findall(r"\b[A-Z_]{4,}\b", "".join(re.findall(r"^//.*$", SOURCE.read_text(), re.MULTILINE))))
    form = tile_linear(4096, 1024, 32)
    assert form is not None
    assert form.macros.keys() - {"N", "K"} <= documented


@pytest.mark.skipif(not shutil.which("nvcc"), reason="requires nvcc")
@pytest.mark.parametrize(
    ("outputs", "inputs", "rows", "flags"),
    [
        (4096, 1024, 40, {"NORM": 1}),
        (2048, 6144, 128, {"RESIDUAL": 1}),
        (6144, 2048, 256, {"NORM": 1, "GATED": 1}),
        (6144, 2048, 384, {"NORM": 1, "GATED": 1}),
        (2048, 6144, 384, {"RESIDUAL": 1}),
        (4096, 1024, 1024, {"NORM": 1}),
        (3072, 2048, 128, {"NORM": 1, "FLOAT_OUT": 1}),
    ],
)
def test_served_tiles_compile_without_spilling_registers(
    outputs: int, inputs: int, rows: int, flags: dict[str, int]
) -> None:
    form = tile_linear(outputs, inputs, rows, **flags)
    assert form is not None
    macros = [f"-D{name}={value}" for name, value in form.macros.items()]
    options = ["-cubin", "-arch=sm_90a", "-std=c++17", "--use_fast_math", "-Xptxas", "-v"]
    command = ["nvcc", *options, *macros, "-o", os.devnull, str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores" in done.stderr
    assert "warning" not in done.stderr
