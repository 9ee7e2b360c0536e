"""Fixtures that take seconds, made once per session."""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings
from rich.progress import Progress

from export.code2wav import export
from export.encoders import CODEC_ENCODER, SPEAKER_ENCODER, export_encoder
from export.forms.form import Form
from export.forms.graph import Runtime
from export.forms.onnx_form import ONNX
from export.forms.program_form import PROGRAM
from export.forms.python_form import PYTHON
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.synthetic.checkpoint import make_checkpoint
from scripts.synthetic.configs import ModelType

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

# gRPC reads it at import. With it, a fork beside running calls prints a line, which tests of processes would read.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# ONNX Runtime reads it at import, too.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# Servers read it: threads that wait would take the core of the other worker.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if not torch.cuda.is_available():
    # Triton reads the variable at import.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tiny operations gain nothing from a second thread and wait for it on a busy machine.
torch.set_num_threads(1)
# Other load on the machine must not fail a test.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

CheckpointOf = Callable[[ModelType], Path]
# How long exports are kept after the last run that used them.
KEPT_SECONDS = 7 * 24 * 3600
Once = Callable[[str, Callable[[Path], None]], Path]

# The files that take longest, about longest first: a worker that began one of them last would leave the others idle.
# Those that mostly wait for servers come beside those that compute.
LONGEST_FILES = (
    "e2e/test_deaths.py",
    "e2e/test_word_times.py",
    "e2e/test_voices.py",
    "e2e/test_drain.py",
    "e2e/test_python_encoders.py",
    "e2e/test_python_codec.py",
    "e2e/test_fleet.py",
    "unit/export/test_encoder_program.py",
    "e2e/test_codec_proof.py",
    "e2e/test_bench_stub.py",
    "oracle/test_synthetic_checkpoint.py",
    "oracle/test_streamed_text.py",
    "e2e/test_exposure.py",
    "e2e/test_readme.py",
    "e2e/test_gateway_words.py",
    "oracle/test_talker.py",
    "unit/server/fleet/test_fleet.py",
    "oracle/test_clone_talker.py",
    "unit/server/test_supervisor.py",
    "unit/scheduling/test_paging.py",
    "e2e/test_streams.py",
    "e2e/test_gateway.py",
    "unit/talker/test_onnx_runner.py",
    "unit/talker/test_prefix_cache.py",
    "unit/code2wav_step/test_kernels.py",
    "e2e/test_measuring.py",
    "e2e/test_code2wav.py",
    "e2e/test_speech.py",
    "e2e/test_doctor.py",
    "unit/voices/test_postgres_store.py",
    "e2e/test_streamed_text.py",
    "unit/process/test_engine_process.py",
    "unit/talker/test_text_positions.py",
    "e2e/test_streamed_clone.py",
    "unit/export/test_tensorrt_form.py",
)


def pytest_configure(config: pytest.Config) -> None:
    # Otherwise pytest-xdist begins with the files of most tests.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.flaky(reruns=4))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models that a test loads in this process set their own number."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> CheckpointOf:
    """Returns the folder of a model type's tiny checkpoint, which tests must not modify."""

    @cache
    def folder(model_type: ModelType) -> Path:
        return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / model_type, "tiny", model_type)

    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(checkpoint_of: CheckpointOf) -> Path:
    return checkpoint_of("custom_voice")


@pytest.fixture(scope="session")
def once(request: pytest.FixtureRequest) -> Once:
    """Returns a folder by its name, which one worker makes for all and for later runs; tests must not modify it."""
    cache: pytest.Cache = request.config.cache
    kept = cache.mkdir("exports")
    current = kept / _digest_of_exports()
    current.mkdir(exist_ok=True)
    os.utime(current)
    for other in kept.iterdir():
        # A run of other code may be under way.
        if time.time() - other.stat().st_mtime > KEPT_SECONDS:
            shutil.rmtree(other, ignore_errors=True)

    def folder(name: str, make: Callable[[Path], None]) -> Path:
        made, partial = current / name, current / f"partial-{name}"
        with (current / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                shutil.rmtree(partial, ignore_errors=True)
                make(partial)
                partial.rename(made)
        return made

    return folder


def _digest_of_exports() -> str:
    """Of all that exports are made from: the demo voice, the code and the packages that it uses."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    code = [
        path for folder in ("export", "model_repository", "scripts/synthetic") for path in (root / folder).rglob("*")
    ]
    code = [path for path in code if path.suffix in (".py", ".pbtxt")] + [*(root / "tests").rglob("conftest.py")]
    voice = [path for path in CHECKPOINT.rglob("*") if path.is_file()]
    for path in sorted([*code, *voice]):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    for package in ("torch", "onnx", "onnxruntime", "onnxscript", "numpy"):
        digest.update(f"{package} {version(package)}\n".encode())
    return digest.hexdigest()[:16]


def _export_codec(checkpoint: Path, form: Form, repository: Path) -> None:
    with Progress(disable=True) as progress:
        export(Checkpoint.open(str(checkpoint)), repository, form, progress)


def _export_encoders(checkpoint: Path, runtime: Runtime, repository: Path) -> None:
    with Progress(disable=True) as progress:
        for encoder in (SPEAKER_ENCODER, CODEC_ENCODER):
            export_encoder(encoder, Checkpoint.open(str(checkpoint)), repository / encoder.name, runtime, progress)


@pytest.fixture(scope="session")
def tiny_code2wav(tiny_checkpoint: Path, once: Once) -> Path:
    """A model repository that holds only code2wav/1: the tiny checkpoint's codec as ONNX, and its manifest."""
    return once("tiny_code2wav", partial(_export_codec, tiny_checkpoint, ONNX))


@pytest.fixture(scope="session")
def tiny_python_code2wav(tiny_checkpoint: Path, once: Once) -> Path:
    """The same codec for the Python backend."""
    return once("tiny_python_code2wav", partial(_export_codec, tiny_checkpoint, PYTHON))


@pytest.fixture(scope="session")
def tiny_base_models(tiny_code2wav: Path, checkpoint_of: CheckpointOf, once: Once) -> Path:
    """A model repository with the exports of the tiny Base checkpoint: code2wav/1 and both encoders."""

    def make(repository: Path) -> None:
        # All tiny checkpoints have one codec.
        shutil.copytree(tiny_code2wav, repository)
        _export_encoders(checkpoint_of("base"), ONNX.encoders, repository)

    return once("tiny_base_models", make)


@pytest.fixture(scope="session")
def tiny_encoder_programs(checkpoint_of: CheckpointOf, once: Once) -> Path:
    """A model repository that holds only both encoders of the tiny Base checkpoint, for the Python backend."""
    return once("tiny_encoder_programs", partial(_export_encoders, checkpoint_of("base"), PROGRAM))


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """A running server; a test that stops it starts it again."""
    # Not every machine that runs tests has psycopg.
    from tests.postgres import PostgresServer

    server = PostgresServer()
    yield server
    server.remove()
