"""Kernels, graphs, codec and serving with parts of the GPU's multiprocessors, as on smaller GPUs, on both paths.

Each combination is a process of its own that runs tests of this folder, since the part is read when CUDA starts.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from export.code2wav import export
from export.forms.python_form import PYTHON
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.talker.kernels.kernel_path import CHOICE_VARIABLE
from scripts.server.mps import MpsDaemon
from scripts.synthetic.checkpoint import make_checkpoint
from tests.e2e.serving import copy_repository
from tests.gpu.conftest import FOLDER
from tests.gpu.test_mps import MPS
from tests.gpu.test_serving import serving

SHARE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
FILES = ("test_kernels.py", "test_runner.py", "test_proof.py", "test_code2wav.py")
CALLERS, FRAMES = 16, 40
# The other files and the whole GPU by the path of its capability are what this folder's tests run themselves.
COMBINATIONS = [(path, share) for path in ("auto", "general") for share in (100, 80, 40, 25)][1:]
pytestmark = pytest.mark.skipif(not MPS, reason="no MPS")


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with MpsDaemon(dict(os.environ)) as environment:
        yield {name: value for name, value in environment.items() if os.environ.get(name) != value}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("path", "share"), COMBINATIONS)
def test_each_path_is_right_with_a_part_of_the_gpu(environment: dict[str, str], path: str, share: int) -> None:
    settings = {CHOICE_VARIABLE: path, SHARE_VARIABLE: str(share)}
    files = [str(FOLDER / name) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, env=os.environ | environment | settings, capture_output=True, text=True, check=False)
    print(done.stdout[-4000:], done.stderr[-1000:])
    assert done.returncode == 0


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of released sizes, for which the codec has kernels, and its repository."""
    folder = tmp_path_factory.mktemp("released")
    checkpoint = make_checkpoint(folder / "checkpoint", "0.6b", "custom_voice")
    repository = copy_repository(folder / "model_repository", fakes=False)
    with Progress(disable=True) as progress:
        export(Checkpoint.open(str(checkpoint)), repository, PYTHON, progress)
    return checkpoint, repository


@pytest.mark.timeout(500)
@pytest.mark.parametrize(("path", "share"), COMBINATIONS)
def test_a_server_with_a_part_of_the_gpu_passes_both_proofs_and_speaks(
    environment: dict[str, Any], released: tuple[Path, Path], tmp_path: Path, path: str, share: int
) -> None:
    checkpoint, repository = released
    settings = environment | {CHOICE_VARIABLE: path, SHARE_VARIABLE: str(share), "QWEN3_TTS_KERNELS": "required"}
    with serving(repository, tmp_path, checkpoint, **settings) as caller, ThreadPoolExecutor(CALLERS) as pool:
        spoken = list(pool.map(lambda seed: caller.speak(seed=seed, max_frames=FRAMES), range(CALLERS)))
    assert [received.error for received in spoken] == [None] * CALLERS
    log = (tmp_path / "server.log").read_text()
    assert "the talker agrees with its golden cases" in log
    assert "code2wav agrees with its golden cases" in log
