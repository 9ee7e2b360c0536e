"""Skips the tests of this folder without a CUDA device; QWEN3_TTS_TEST_DEVICE selects the device.

QWEN3_TTS_KERNEL_PATH=general tests the kernels of other GPUs; test_shares.py does so with parts of the GPU.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.progress import Progress

from export.code2wav import export
from export.forms.python_form import PYTHON
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.talker.kernels.kernel_path import CHOICE_VARIABLE
from scripts.synthetic.checkpoint import make_endless
from tests.e2e.serving import copy_repository

FOLDER = Path(__file__).parent
DEVICE = torch.device(os.environ.get("QWEN3_TTS_TEST_DEVICE", "cuda:0"))
KERNEL_PATH = os.environ.get(CHOICE_VARIABLE, "auto")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker("gpu")
            if not torch.cuda.is_available():
                item.add_marker(skip)


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return Checkpoint.open(str(tiny_checkpoint))


@pytest.fixture(scope="session", autouse=True)
def _on_device() -> Iterator[None]:
    with torch.cuda.device(DEVICE):
        yield


@pytest.fixture
def device() -> Iterator[torch.device]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield DEVICE


@pytest.fixture(scope="session")
def repository(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = copy_repository(tmp_path_factory.mktemp("gpu") / "model_repository", fakes=False)
    with Progress(disable=True) as progress:
        export(Checkpoint.open(str(tiny_checkpoint)), repository, PYTHON, progress)
    return repository


@pytest.fixture
def endless_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    make_endless(copy)
    return copy
