"""Skips the tests of this folder without a CUDA device; QWEN3_TTS_TEST_DEVICE selects the device."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint

FOLDER = Path(__file__).parent
DEVICE = torch.device(os.environ.get("QWEN3_TTS_TEST_DEVICE", "cuda:0"))


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
