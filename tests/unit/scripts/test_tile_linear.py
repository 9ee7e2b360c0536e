"""tile_linear.cu on the CPU, in an emulator of warpgroups, clusters and copies of tiles (tests/fakes/cuda)."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from qwen3_tts_engine.talker.kernels import linear
from scripts.benchmarks.products.shapes import PRODUCTS
from scripts.benchmarks.products.tile_linear import MAX_SHARED, SOURCE, STEP, TileLinear, forms, with_stages
from tests.fakes.cuda import emulated

KERNELS = Path(linear.__file__).parent
PAGE = SOURCE.with_name("README.md")
# A form of each kind of epilogue, cluster and number of stages; rows of x that do not fill the last block.
CASES = {
    "alone": (40, TileLinear(128, 256, 64, 1, 1, 1, 1, 2)),
    "shared": (50, TileLinear(256, 768, 64, 2, 1, 2, 2, 3, NORM=1, GATED=1)),
    "split": (33, TileLinear(128, 1024, 64, 1, 8, 1, 1, 2, RESIDUAL=1)),
    "split and shared": (45, TileLinear(256, 512, 32, 1, 2, 2, 2, 3, NORM=1)),
    "bias": (97, TileLinear(128, 512, 96, 1, 2, 2, 1, 2, NORM=1, BIAS=1)),
    "logits": (130, TileLinear(256, 512, 128, 1, 1, 4, 2, 2, NORM=1, FLOAT_OUT=1)),
}
# What a wrong kernel does: a change of the source, and a form in which it shows.
MUTATIONS = {
    "a stage is refilled while others use it": (
        "            wait_for_phase(empty + 8 * (step % STAGES), (step / STAGES - 1) % 2);\n",
        "",
        TileLinear(128, 1024, 32, 1, 2, 2, 2, 2),
    ),
    "a stage is released before its products": (
        "if (step >= 1 && step - 1 + STAGES < STEPS) release(step - 1);",
        "if (step + STAGES < STEPS) release(step);",
        TileLinear(128, 1024, 32, 1, 2, 2, 2, 2),
    ),
    "sums are used before the last products": (
        "    wait_for_products();\n",
        "",
        TileLinear(128, 512, 32, 1, 1, 1, 1, 2),
    ),
    "sums replace operands that another group reads": (
        "    sync_first(CONSUMERS);\n    // A block ends",
        "    // A block ends",
        TileLinear(128, 64, 32, 2, 1, 1, 1, 1),
    ),
    "sums are read before all are there": (
        "    sync_first(CONSUMERS);\n    if (SPLIT > 1)",
        "    if (SPLIT > 1)",
        TileLinear(128, 512, 32, 1, 1, 1, 1, 2),
    ),
    "sums of other blocks are not waited for": (
        "    if (SPLIT > 1) wait_for_all(complete);\n",
        "",
        TileLinear(128, 512, 32, 1, 2, 1, 1, 2),
    ),
    "a stage is never released": (
        "release(step - 1);",
        ";",
        TileLinear(128, 1024, 32, 1, 1, 1, 1, 2),
    ),
}
pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")


def error(form: TileLinear, rows: int, source: str, folder: Path) -> float | None:
    blocks = form.blocks(rows)
    return emulated.error(form, SOURCE, source, rows, blocks, folder)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_in_whatever_order_its_threads_run(tmp_path: Path, name: str) -> None:
    rows, form = CASES[name]
    assert form.is_valid
    found = error(form, rows, SOURCE.read_text(), tmp_path)
    assert found is not None
    assert found < (1e-6 if form.FLOAT_OUT else 8e-3)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_kernel_that_does_not_wait(tmp_path: Path, name: str) -> None:
    before, after, form = MUTATIONS[name]
    source = SOURCE.read_text()
    assert source.count(before) == 1
    assert form.is_valid
    found = error(form, 40, source.replace(before, after), tmp_path)
    assert found is None or found > 0.05


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", [32, 40, 64, 128, 256, 512])
def test_forms_divide_their_product_and_fit(product: str, rows: int) -> None:
    shape = PRODUCTS[product]
    found = forms(shape.outputs, shape.inputs, rows, 8, **shape.flags)
    assert len(found) == len(set(found)) == 8
    for form in found:
        assert form.is_valid
        assert form.shared_bytes <= MAX_SHARED
        assert 1 <= form.STAGES <= form.K // form.SPLIT // STEP
        assert form.blocks(rows) % form.cluster == 0
        tiles = form.N // form.outputs * form.SPLIT
        assert form.blocks(rows) >= tiles * rows / form.ROWS


def test_shared_tiles_are_read_once() -> None:
    alone = with_stages(TileLinear(4096, 1024, 128, 1, 1, 1, 1))
    together = with_stages(TileLinear(4096, 1024, 128, 1, 1, 4, 2))
    assert together.blocks(256) == alone.blocks(256)
    assert together.microseconds(256) < alone.microseconds(256)


def test_the_page_has_the_bounds() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| ([\d.]+) \(.*?\) \| ([\d.]+) \(.*?\) \| ([\d.]+) \|$", PAGE.read_text(), re.M)
    assert len(rows) == 8
    for product, *bounds in rows:
        shape = PRODUCTS[product]
        best = [forms(shape.outputs, shape.inputs, count, 1, **shape.flags)[0] for count in (64, 128, 256)]
        found = [form.microseconds(count) for form, count in zip(best, (64, 128, 256), strict=True)]
        assert [float(bound) for bound in bounds] == pytest.approx(found, abs=0.06)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="requires nvcc")
@pytest.mark.parametrize(("product", "rows"), [("p.qkv", 64), ("p.down", 128), ("t.gate", 256), ("t.head", 128)])
def test_forms_compile_without_spilling_registers(product: str, rows: int) -> None:
    shape = PRODUCTS[product]
    for form in forms(shape.outputs, shape.inputs, rows, 2, **shape.flags):
        macros = [f"-D{name}={value}" for name, value in form.macros.items()]
        options = ["-cubin", "-arch=sm_90a", "-std=c++17", "--use_fast_math", "-Xptxas", "-v", f"-I{KERNELS}"]
        command = ["nvcc", *options, *macros, "-o", os.devnull, str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "0 bytes spill stores" in done.stderr
        assert "warning" not in done.stderr
