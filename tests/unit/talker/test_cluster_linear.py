"""cluster_linear.cu on the CPU, in an emulator of warpgroups and clusters; tests/gpu runs it on a GPU."""

import shutil
from pathlib import Path

import pytest

from qwen3_tts_engine.talker.kernels.cluster_linear import ClusterLinear
from tests.fakes.cuda.emulated import SOURCE, error

# Rows of x, outputs, inputs, ROWS, GROUPS, SPLIT, STAGES and the epilogue.
CASES = {
    "norm": (20, ClusterLinear(128, 512, 32, 1, 2, 3, NORM=1)),
    "gated": (40, ClusterLinear(128, 512, 64, 2, 2, 3, NORM=1, GATED=1)),
    "residual": (32, ClusterLinear(128, 1024, 32, 1, 4, 3, RESIDUAL=1)),
    "logits": (32, ClusterLinear(128, 512, 32, 1, 2, 3, NORM=1, FLOAT_OUT=1)),
    "bias": (17, ClusterLinear(64, 1024, 32, 1, 4, 4, NORM=1, BIAS=1)),
}
MUTATIONS = {
    "copies are not waited for": ("        wait_for_copies(step < STAGES ? STAGES - 1 : STAGES - 2);\n", ""),
    "copies of other threads are not waited for": ("        publish_copies();\n        __syncthreads();\n", ""),
    "a stage is refilled while it is used": ("        wait_for_products();\n        publish", "        publish"),
    "sums of other blocks are not waited for": ("    wait_for_all(barrier);\n", ""),
}

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_in_whatever_order_its_threads_run(tmp_path: Path, name: str) -> None:
    rows, form = CASES[name]
    found = error(form, rows, SOURCE.read_text(), tmp_path)
    assert found is not None
    assert found < (1e-6 if form.FLOAT_OUT else 8e-3)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_kernel_that_does_not_wait(tmp_path: Path, name: str) -> None:
    before, after = MUTATIONS[name]
    source = SOURCE.read_text()
    assert source.count(before) == 1
    found = error(ClusterLinear(128, 1024, 32, 2, 2, 3), 32, source.replace(before, after), tmp_path)
    assert found is None or found > 0.05
