"""tile_linear.cu on the CPU, in an emulator of warpgroups, clusters and copies of tiles (tests/fakes/cuda)."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.talker.kernels import linear
from scripts.benchmarks.products.shapes import PRODUCTS
from scripts.benchmarks.products.tile_linear import MAX_SHARED, SOURCE, STEP, TileLinear, forms, with_stages

EMULATOR = Path(__file__).parents[2] / "fakes" / "cuda"
KERNELS = Path(linear.__file__).parent
PAGE = SOURCE.with_name("README.md")
EPS = 1e-6
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
Run = Callable[..., float | None]

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a form with some source; returns the error of the worst row relative to its norm, None if it did not end."""

    def run(form: TileLinear, rows: int, source: str, seeds: range) -> float | None:
        kernel = compiled(form, source, tmp_path)
        errors = [measured(kernel, form, rows, seed) for seed in seeds]
        return None if None in errors else max(filter(None, errors))

    return run


def compiled(form: TileLinear, source: str, folder: Path) -> Any:
    # In a folder without the real headers.
    (folder / SOURCE.name).write_text(source)
    library = folder / "kernel.so"
    macros = [f"-D{name}={value}" for name, value in form.macros.items()]
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w", f"-I{EMULATOR}", f"-I{folder}"]
    subprocess.run(["g++", *options, *macros, str(EMULATOR / "tile_linear.cpp"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library)).run


def measured(kernel: Any, form: TileLinear, rows: int, seed: int) -> float | None:
    random = np.random.default_rng(seed)
    x, weight = to_bfloat16(random.normal(size=(rows, form.K))), random.normal(size=(form.N * (1 + form.GATED), form.K))
    weight = to_bfloat16(0.05 * weight)
    bias, start = to_bfloat16(random.normal(size=form.N)), to_bfloat16(random.normal(size=(rows, form.N)))
    out = np.zeros(start.shape, np.float32) if form.FLOAT_OUT else start.copy()
    arrays = [ctypes.c_void_p(array.ctypes.data) for array in (x, weight, bias, out)]
    if kernel(*arrays, rows, ctypes.c_float(EPS), form.blocks(rows), form.shared_bytes, seed):
        return None
    expected = reference(form, *(to_float(array) for array in (x, weight, bias, start)))
    found = out if form.FLOAT_OUT else to_float(out)
    return float(
        np.nan_to_num(np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1), nan=9).max()
    )


def reference(form: TileLinear, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, start: np.ndarray) -> np.ndarray:
    scale = 1 / np.sqrt(np.square(x).mean(1, keepdims=True) + EPS) if form.NORM else 1.0
    y: np.ndarray = (x * scale) @ weight.T + form.BIAS * bias.repeat(1 + form.GATED)
    if form.GATED:
        gate, up = np.split(y, 2, axis=1)
        y = gate / (1 + np.exp(-gate)) * up
    return y + start if form.RESIDUAL else y


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_in_whatever_order_its_threads_run(run: Run, name: str) -> None:
    rows, form = CASES[name]
    assert form.is_valid
    error = run(form, rows, SOURCE.read_text(), range(3))
    assert error is not None
    assert error < (1e-6 if form.FLOAT_OUT else 8e-3)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_kernel_that_does_not_wait(run: Run, name: str) -> None:
    before, after, form = MUTATIONS[name]
    source = SOURCE.read_text()
    assert source.count(before) == 1
    assert form.is_valid
    error = run(form, 40, source.replace(before, after), range(3))
    assert error is None or error > 0.05


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
