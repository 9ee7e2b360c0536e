"""resident_unit.cu on the CPU, in an emulator of warpgroups."""

import shutil
from itertools import islice
from pathlib import Path

import pytest

from tests.fakes.cuda.codec.emulated_unit import SOURCE, Case, errors
from tests.fakes.cuda.compiler import mutated

CASES = {
    "one tile a block": Case(2, 64, 1, blocks=2),
    "groups without a tile": Case(1, 128, 3, blocks=1, out="in place"),
    "several rounds, the last one partial": Case(2, 256, 9, blocks=2, out="absent"),
    "out in place": Case(1, 448, 3, blocks=2, out="in place"),
}
END = "        end_turn();\n\n        wait_for_products(0);\n"
MUTATIONS = {
    "vectors are not waited for": (", await(arrivals + 8 * TAPS, 0)", ""),
    "the next tile is not waited for": ("        wait_for_copies(0);\n        publish_copies();\n", ""),
    "a tile is refilled while it is used": (
        END,
        END.replace(
            "        wait", "        if (tile_of(round + 1) < tiles) copy_x(tile_of(round + 1));\n        wait"
        ),
    ),
    "sums are read while they are computed": (END, "        end_turn();\n\n"),
}

pytestmark = [pytest.mark.long, pytest.mark.skipif(not shutil.which("g++"), reason="requires g++")]


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_in_whatever_order_its_threads_run(tmp_path: Path, name: str) -> None:
    assert max(islice(errors(CASES[name], SOURCE.read_text(), tmp_path), 2)) < 1e-3


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds_a_kernel_that_does_not_wait(tmp_path: Path, name: str) -> None:
    source = mutated(SOURCE.read_text(), MUTATIONS[name])
    found = errors(Case(1, 448, 3, blocks=1), source, tmp_path)
    assert any(error > 0.01 for error in islice(found, 24))
