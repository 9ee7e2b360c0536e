"""Kernels, graphs, codec and serving with parts of the GPU's multiprocessors, as on smaller GPUs, on both paths.

Each combination is a process of its own that runs tests of this folder, since the part is read when CUDA starts.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from qwen3_tts_engine.talker.kernels.kernel_path import CHOICE_VARIABLE
from scripts.embedded.mps import MpsDaemon
from tests.gpu.conftest import FOLDER
from tests.gpu.test_mps import MPS

SHARE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
FILES = ("test_kernels.py", "test_runner.py", "test_proof.py", "test_code2wav.py", "test_serving.py")
# The other files and the whole GPU by the path of its capability are what this folder's tests run themselves.
COMBINATIONS = [(path, share) for path in ("auto", "general") for share in (100, 80, 40, 25)][1:]
pytestmark = pytest.mark.skipif(not MPS, reason="no MPS")


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with MpsDaemon(dict(os.environ)) as environment:
        yield environment


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("path", "share"), COMBINATIONS)
def test_each_path_is_right_with_a_part_of_the_gpu(environment: dict[str, str], path: str, share: int) -> None:
    settings = {CHOICE_VARIABLE: path, SHARE_VARIABLE: str(share)}
    files = [str(FOLDER / name) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, check=False)
    print(done.stdout[-4000:], done.stderr[-1000:])
    assert done.returncode == 0
