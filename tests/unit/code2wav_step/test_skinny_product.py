"""skinny_product.cu on the CPU, in an emulator of warps, and when it is chosen."""

import shutil
from itertools import islice
from pathlib import Path

import pytest

from code2wav_step.kernels import skinny_product
from code2wav_step.kernels.skinny_product import SkinnyProduct, skinny_form
from code2wav_step.kernels.streamed_product import SHARED_BYTES
from tests.fakes.cuda.codec.emulated_skinny import SOURCE, Case, errors
from tests.fakes.cuda.compiler import mutated

pytestmark = pytest.mark.long

BOTH = ("out", "active")
CASES = {
    "norm": Case(5, 1, SkinnyProduct(48, 512, 1, 1, norm=True), has_vectors=False),
    "gated": Case(3, 4, SkinnyProduct(32, 256, 1, 2, norm=True, activation="gated"), has_vectors=False),
    "gelu": Case(2, 2, SkinnyProduct(64, 256, 1, 1, activation="gelu")),
    "residual in place": Case(7, 1, SkinnyProduct(16, 1024, 1, 1), has_vectors=False, has_residual=True),
    "taps, many steps": Case(2, 4, SkinnyProduct(16, 192, 7, 1), dilation=3, results=BOTH),
    "taps of several entries, two blocks of rows": Case(
        3, 13, SkinnyProduct(16, 96, 2, 4), results=BOTH, has_residual=True
    ),
    "only the activation": Case(1, 32, SkinnyProduct(24, 768, 1, 4), results=("active",), has_residual=True),
}
MUTATIONS = {
    "sums are added before they are there": ("    __syncthreads();\n", ""),
    "a tile takes the other's weights": ("weights[2 * pair + 1][step] :", "weights[2 * pair][step] :"),
    "a part of x replaces one in use": ("inputs[part % 2][octet][i] =", "inputs[0][octet][i] ="),
    "taps are neighbours": ("tap * (dilation - 1) * CHANNELS", "0"),
    "a block stores another's rows": (
        "const int row = first_row + min((int)",
        "const int row = min((int)",
    ),
}
emulated = pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")


@pytest.fixture
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skinny_product, "MIN_BLOCKS", 2)


@emulated
@pytest.mark.usefixtures("_small_products")
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_in_whatever_order_its_threads_run(tmp_path: Path, name: str) -> None:
    assert max(islice(errors(CASES[name], SOURCE.read_text(), tmp_path), 2)) < 1e-3


@emulated
@pytest.mark.usefixtures("_small_products")
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_wrong_kernel(tmp_path: Path, name: str) -> None:
    case = Case(5, 8, SkinnyProduct(32, 96, 7, 4), dilation=3, results=BOTH)
    assert case.form.tiles == 2
    found = errors(case, mutated(SOURCE.read_text(), MUTATIONS[name]), tmp_path)
    assert any(error > 0.01 for error in islice(found, 3))


@pytest.mark.parametrize("rows", [1, 9, 64])
def test_forms_fit_a_multiprocessor(rows: int) -> None:
    """Those of the released codec; a warp's slices are whole."""
    for outputs, channels, taps, activation in (
        (512, 512, 3, "none"), (3072, 512, 1, "none"), (512, 1024, 1, "none"), (1024, 512, 1, "gated"),
        (2048, 1024, 1, "none"), (4096, 1024, 1, "gelu"), (1024, 4096, 1, "none"), (1536, 1024, 7, "none"),
        (6144, 1536, 2, "none"), (768, 768, 7, "none"), (768, 768, 1, "none"), (1920, 768, 2, "none"),
    ):  # fmt: skip
        form = skinny_form(rows, outputs, channels, taps, norm=channels == 512, activation=activation)
        assert form is not None
        assert form.shared_bytes <= SHARED_BYTES
        assert taps * channels % (32 * form.warps) == 0
        assert outputs % (8 * form.tiles) == 0
        assert form.blocks(rows) >= outputs // 8 // form.tiles


def test_many_rows_odd_channels_and_widths_run_other_kernels() -> None:
    assert skinny_form(1, 768, 37 * 32, 1, norm=False, activation="none") is None, "37 slices are one warp's"
    assert skinny_form(65, 768, 768, 7, norm=False, activation="none") is None
    assert skinny_form(1, 768, 48, 7, norm=False, activation="none") is None
