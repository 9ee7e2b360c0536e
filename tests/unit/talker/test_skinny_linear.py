"""skinny_linear.cu on the CPU, in an emulator of warps; tests/gpu runs it on a GPU."""

import shutil
from pathlib import Path

import pytest

from qwen3_tts_engine.talker.kernels.linear import LANES
from qwen3_tts_engine.talker.kernels.skinny_linear import (
    BLOCKS,
    MIN_BLOCKS,
    WEIGHT_REGISTERS,
    SkinnyLinear,
    skinny_linear,
)
from tests.fakes.cuda.compiler import mutated
from tests.fakes.cuda.emulated import KERNELS, error

SOURCE = KERNELS / "skinny_linear.cu"
# Registers of a multiprocessor, and shared memory of a block on GPUs that have the least.
REGISTERS, SHARED_BYTES = 1 << 16, 99 * 1024
# Rows of x; outputs, inputs, HALVES, WARPS, TILES and the epilogue.
CASES = {
    "norm": (5, SkinnyLinear(64, 256, 1, 8, 4, NORM=1)),
    "gated": (8, SkinnyLinear(32, 512, 1, 8, 2, NORM=1, GATED=1)),
    "gated, three tiles": (3, SkinnyLinear(48, 128, 1, 4, 3, NORM=1, GATED=1)),
    "one tile": (3, SkinnyLinear(24, 256, 1, 8, 1, RESIDUAL=1)),
    "residual of two halves": (13, SkinnyLinear(32, 512, 2, 8, 2, RESIDUAL=1)),
    "logits of three blocks of rows": (40, SkinnyLinear(32, 256, 2, 4, 2, NORM=1, FLOAT_OUT=1)),
    "more warps than a block has rows and outputs": (1, SkinnyLinear(32, 3072, 1, 24, 2, RESIDUAL=1)),
    "bias": (1, SkinnyLinear(32, 256, 1, 8, 2, NORM=1, BIAS=1)),
}
MUTATIONS = {
    "sums are added before they are there": ("    __syncthreads();\n\n", ""),
    "a tile takes the other's weights": ("weights[2 * pair + 1][step] :", "weights[2 * pair][step] :"),
    "rows share their sums": ("sums[warp][row][unit", "sums[warp][row / 2][unit"),
}
pytestmark = [pytest.mark.long, pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")]


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_in_whatever_order_its_threads_run(tmp_path: Path, name: str) -> None:
    rows, form = CASES[name]
    found = error(form, rows, SOURCE.read_text(), tmp_path)
    assert found is not None
    assert found < (1e-6 if form.FLOAT_OUT else 1.2e-2 if form.GATED else 8e-3)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_wrong_kernel(tmp_path: Path, name: str) -> None:
    form = SkinnyLinear(32, 256, 1, 8, 2, RESIDUAL=1)
    found = error(form, 7, mutated(SOURCE.read_text(), MUTATIONS[name]), tmp_path)
    assert found is None or found > 0.05


@pytest.mark.parametrize(("height", "inputs"), [*BLOCKS, (2048, 1024), (3072, 2048), (64, 96)])
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 40])
@pytest.mark.parametrize("hopper", [False, True])
def test_a_form_divides_its_product_and_fits_a_multiprocessor(
    height: int, inputs: int, rows: int, hopper: bool
) -> None:
    gated = height in (6144, 12288)
    form = skinny_linear(height // (1 + gated), inputs, rows, hopper=hopper, GATED=int(gated))
    assert form.N % (8 * form.TILES) == form.K % (LANES * form.WARPS) == 0
    assert form.weight_registers * form.threads <= REGISTERS
    assert form.shared_bytes <= SHARED_BYTES


@pytest.mark.parametrize(("height", "inputs"), BLOCKS)
def test_blocks_of_other_gpus_are_many_and_leave_half_of_the_registers(height: int, inputs: int) -> None:
    gated = height in (6144, 12288)
    form = skinny_linear(height // (1 + gated), inputs, 8, hopper=False, GATED=int(gated))
    assert form.blocks >= MIN_BLOCKS
    assert form.weight_registers <= WEIGHT_REGISTERS[form.WARPS]
