"""skinny_linear.cu on the CPU, in an emulator of warps; tests/gpu runs it on a GPU."""

import shutil
from pathlib import Path

import pytest

from qwen3_tts_engine.talker.kernels import skinny_linear
from qwen3_tts_engine.talker.kernels.skinny_linear import SkinnyLinear
from tests.fakes.cuda.compiler import mutated
from tests.fakes.cuda.emulated import KERNELS, error

SOURCE = KERNELS / "skinny_linear.cu"
# Rows of x; tiles of a block; outputs, inputs, HALVES and the epilogue.
CASES = {
    "norm": (5, 4, SkinnyLinear(64, 256, 1, NORM=1)),
    "gated": (8, 2, SkinnyLinear(32, 512, 1, NORM=1, GATED=1)),
    "one tile": (3, 1, SkinnyLinear(24, 256, 1, RESIDUAL=1)),
    "residual of two halves": (13, 2, SkinnyLinear(32, 512, 2, RESIDUAL=1)),
    "logits of two blocks of rows": (40, 2, SkinnyLinear(32, 256, 4, NORM=1, FLOAT_OUT=1)),
    "two rounds": (6, 1, SkinnyLinear(32, 6144, 1, RESIDUAL=1)),
    "bias": (1, 2, SkinnyLinear(32, 256, 1, NORM=1, BIAS=1)),
}
MUTATIONS = {
    "sums are added before they are there": ("        __syncthreads();\n\n", ""),
    "sums of a round replace those of the last": ("        if (round) __syncthreads();\n", ""),
    "a tile takes the other's weights": ("weights[round][2 * pair + 1][step] :", "weights[round][2 * pair][step] :"),
    "rows share their sums": ("sums[warp][row][unit", "sums[warp][row / 2][unit"),
}
pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skinny_linear, "MIN_BLOCKS", 2)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_in_whatever_order_its_threads_run(tmp_path: Path, name: str) -> None:
    rows, tiles, form = CASES[name]
    assert form.tiles == tiles
    found = error(form, rows, SOURCE.read_text(), tmp_path)
    assert found is not None
    assert found < (1e-6 if form.FLOAT_OUT else 1.2e-2 if form.GATED else 8e-3)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_wrong_kernel(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form = SkinnyLinear(32, 256, 1, RESIDUAL=1)
    if "round" in name:
        monkeypatch.setattr(skinny_linear, "WEIGHT_REGISTERS", {8: 4})
        assert form.rounds == 2
    found = error(form, 7, mutated(SOURCE.read_text(), MUTATIONS[name]), tmp_path)
    assert found is None or found > 0.05
