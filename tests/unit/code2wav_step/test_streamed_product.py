"""streamed_product.cu on the CPU, in an emulator of warpgroups, and when it is chosen."""

import shutil
from itertools import islice
from pathlib import Path

import pytest

from code2wav_step.kernels import streamed_product
from code2wav_step.kernels.streamed_product import StreamedProduct, product_form, unit_form
from tests.fakes.cuda.codec.emulated_product import SOURCE, Case, errors, of
from tests.fakes.cuda.compiler import mutated

pytestmark = pytest.mark.long

CASES = {
    "rows behind each other, several tiles a block": Case(2, 128, 128, 192, 7, 3, of(96, 2, 128, 7, 3), blocks=2),
    "a copy for each tap, the last tile partial": Case(5, 32, 64, 96, 2, 1, of(96, 2, 32, 2, 1), 1, ("out",)),
    "one tap": Case(1, 256, 192, 192, 1, 1, of(192, 2, 256, 1, 1), blocks=1, results=("active",), has_residual=False),
    "three groups, one without rows": Case(1, 128, 64, 192, 2, 1, of(192, 3, 128, 2, 1), blocks=1, in_place=True),
    "a unit": Case(1, 256, 192, 192, 7, 3, of(192, 2, 256, 7, 3, unit=True), blocks=1, in_place=True),
}
TAKEN = "                await(full + 8 * ws.stage, ws.phase);\n"
COPIED = "                wait_for_copies(x_stages - 2);\n"
READ = """\
        wait_for_products(0);
        #pragma unroll
        for (int i = 0; i < SUMS; i++) settle(sums[i]);
        release(used);
"""
MUTATIONS = {
    "weights are not waited for": (TAKEN, ""),
    "rows are not waited for": (COPIED, ""),
    "weights are released while they are used": (
        "                if (used >= 0) release(used);\n                used = ws.stage;\n",
        "                release(ws.stage);\n",
    ),
    "sums are read while they are computed": (READ, READ.replace("        wait_for_products(0);\n", "")),
}
PROCESSORS = 132

emulated = pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")


@emulated
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_in_whatever_order_its_threads_run(tmp_path: Path, name: str) -> None:
    assert max(islice(errors(CASES[name], SOURCE.read_text(), tmp_path), 2)) < 1e-3


@emulated
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_kernel_that_does_not_wait(tmp_path: Path, name: str) -> None:
    source = mutated(SOURCE.read_text(), MUTATIONS[name])
    case = Case(1, 128, 128, 96, 7, 1, of(96, 2, 128, 7, 1), blocks=1)
    found = errors(case, source, tmp_path)
    assert any(error > 0.01 for error in islice(found, 12))


@pytest.mark.parametrize("streams", [1, 4, 16, 48, 64])
@pytest.mark.parametrize("frames", [1, 2, 4, 16])
def test_forms_fit_a_multiprocessor_and_their_rings_work(streams: int, frames: int) -> None:
    forms = []
    for channels, outputs, positions in ((1536, 6144, 4), (768, 1920, 32), (384, 768, 160), (192, 288, 640)):
        of_block = positions * frames * streams, positions * frames
        forms.append(product_form(*of_block, outputs, channels, 2, 1, PROCESSORS))
        forms += [product_form(*of_block, channels, channels, 7, dilation, PROCESSORS) for dilation in (1, 3, 9)]
        forms += [unit_form(*of_block, channels, 7, dilation, PROCESSORS) for dilation in (1, 3, 9)]
    for form in filter(None, forms):
        assert form.shared_bytes <= streamed_product.SHARED_BYTES
        # One stage is multiplied, one released with the next, and one filled.
        assert form.w_stages >= 3


def test_few_rows_run_the_triton_kernels() -> None:
    assert product_form(32, 32, 768, 768, 7, 1, PROCESSORS) is None
    assert unit_form(640, 640, 192, 7, 1, PROCESSORS) is None


def test_tiles_fill_the_multiprocessors_in_few_rounds() -> None:
    """192 x 192 in one round for 6144 rows of 768 outputs, 128 x 192 in two for 8192 (docs/lab/codec.md)."""
    assert product_form(6144, 128, 768, 768, 7, 1, PROCESSORS) == StreamedProduct(192, 3, 7, 1)
    assert product_form(8192, 128, 768, 768, 7, 1, PROCESSORS) == StreamedProduct(192, 2, 7, 1)


def test_channels_that_are_no_multiple_of_a_step_or_a_tile_are_not_supported() -> None:
    assert product_form(163840, 640, 192, 96, 7, 1, PROCESSORS) is None
    assert product_form(163840, 640, 100, 192, 7, 1, PROCESSORS) is None
