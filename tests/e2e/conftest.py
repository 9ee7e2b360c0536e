"""Fixtures for servers shared between tests."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.progress import Progress

from export.alignment import choose_heads
from export.code2wav import export
from export.forms.onnx_form import ONNX
from qwen3_tts_client.protocol import MODEL_NAME
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.server.tritonserver import TritonServer
from tests.conftest import Once
from tests.e2e.serving import Caller, copy_repository, scripted_settings, serve


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Restores SIGINT handling, which a background shell disables and child processes inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def scripted_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_repository(tmp_path_factory.mktemp("scripted") / "model_repository", fakes=True)


@pytest.fixture(scope="session")
def scripted_environment(tiny_checkpoint: Path) -> dict[str, str]:
    return scripted_settings(tiny_checkpoint)


@pytest.fixture(scope="session")
def exported_demo(once: Once) -> Path:
    """The demo voice's codec and its heads for word times, as `repository_with` takes them."""

    def make(repository: Path) -> None:
        checkpoint = Checkpoint.open(str(CHECKPOINT))
        with Progress(disable=True) as progress:
            export(checkpoint, repository, ONNX, progress)
        alignment, _ = choose_heads(checkpoint, torch.device("cpu"))
        version = repository / MODEL_NAME / "1"
        version.mkdir(parents=True)
        alignment.write(version)

    return once("demo", make)


@pytest.fixture(scope="session")
def scripted(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """One server for all tests of a worker, which leave it idle."""
    with serve(scripted_repository, tmp_path_factory.mktemp("server"), scripted_environment) as server:
        yield server


@pytest.fixture
def caller(scripted: TritonServer) -> Iterator[Caller]:
    with Caller(scripted) as caller:
        yield caller
