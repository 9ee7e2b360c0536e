"""The server of a soak: three models in a repository of its own, under the launcher, with faults on demand."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.progress import Progress

from scripts.server.add_model import add_model
from scripts.server.ports import Ports
from scripts.server.tritonserver import BUILT, is_ready
from scripts.soak.utterances import BASE, CUSTOM, DESIGN
from scripts.synthetic.checkpoint import make_checkpoint
from scripts.synthetic.configs import ModelType, Size

ROOT = Path(__file__).parents[2]
MODEL_TYPES: dict[str, ModelType] = {CUSTOM: "custom_voice", BASE: "base", DESIGN: "voice_design"}
READY_SECONDS = 900.0
POLL_SECONDS = 0.1
STUB = "triton_python_backend_stub"
ENGINE = "engine_process.py"


@dataclass(frozen=True)
class Setting:
    """Files of a soak, and what it serves."""

    folder: Path
    size: Size
    form: str
    """Options of tritonserver."""

    @property
    def faults(self) -> Path:
        return self.folder / "faults"

    @property
    def repository(self) -> Path:
        return self.folder / "model_repository"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def checkpoint(self, model: str) -> Path:
        return self.folder / "checkpoints" / MODEL_TYPES[model]

    def prepare(self) -> None:
        """Creates checkpoints and repository; keeps the exports of an earlier soak."""
        self.faults.mkdir(parents=True, exist_ok=True)
        unbuilt = shutil.ignore_patterns(*BUILT)
        shutil.copytree(ROOT / "model_repository", self.repository, ignore=unbuilt, dirs_exist_ok=True)
        with Progress() as progress:
            for model, model_type in MODEL_TYPES.items():
                make_checkpoint(self.checkpoint(model), self.size, model_type, progress=progress)
        repository = ["--model-repository", str(self.repository), "--form", self.form]
        export = [sys.executable, "-m", "export", "--checkpoint", str(self.checkpoint(BASE)), *repository]
        subprocess.run(export, cwd=ROOT, check=True)
        for model in (BASE, DESIGN):
            shutil.rmtree(self.repository / model, ignore_errors=True)
            add_model(model, str(self.checkpoint(model)), self.repository)
        for file in (Path(__file__).parent / "faulty").glob("*.py"):
            shutil.copy(file, self.repository / CUSTOM / "1")


class Server:
    """The launcher, which restarts tritonserver when it dies."""

    def __init__(self, launcher: psutil.Process, ports: Ports) -> None:
        self._launcher, self.ports = launcher, ports

    @property
    def triton(self) -> psutil.Process:
        """Raises LookupError while there is none."""
        return _find(self._launcher.children(), "tritonserver")

    @property
    def processes(self) -> list[psutil.Process]:
        """tritonserver, the stubs of its Python models and their engines."""
        triton = self.triton
        stubs = [child for child in triton.children() if STUB in child.name() or STUB in _command(child)]
        return [triton, *stubs, *(child for stub in stubs for child in stub.children() if ENGINE in _command(child))]

    def stub(self, model: str) -> psutil.Process:
        """Raises LookupError if the model is not served by Python or there is no server."""
        return _find(self.triton.children(), f"/{model}/1/")

    def engine(self, model: str) -> psutil.Process:
        """The engine's process, or the stub where it has none."""
        stub = self.stub(model)
        return next((child for child in stub.children() if ENGINE in _command(child)), stub)

    def is_ready(self) -> bool:
        return all(is_ready(self.ports, model) for model in MODEL_TYPES)

    def wait_ready(self, deadline_seconds: float = READY_SECONDS) -> None:
        """Raises TimeoutError."""
        end = time.monotonic() + deadline_seconds
        while not self.is_ready():
            if time.monotonic() > end or not self._launcher.is_running():
                raise TimeoutError("the server did not become ready; its log says why")
            time.sleep(POLL_SECONDS)


@contextmanager
def launched(setting: Setting, environment: dict[str, str]) -> Iterator[Server]:
    ports = Ports.free()
    command = [sys.executable, "-m", "scripts.server", "serve", f"--model-repository={setting.repository}"]
    command += [f"--build-folder={setting.folder}", *ports.options]
    own = {"SOAK_FAULTS": str(setting.faults), "QWEN3_TTS_CHECKPOINT": str(setting.checkpoint(CUSTOM))}
    own["QWEN3_TTS_VOICES_FOLDER"] = str(setting.folder / "voices")
    with setting.log.open("wb") as log:
        launcher = subprocess.Popen(
            command, cwd=ROOT, env=dict(os.environ) | own | environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            server = Server(psutil.Process(launcher.pid), ports)
            server.wait_ready()
            yield server
        finally:
            launcher.terminate()
            launcher.wait()


def _find(processes: list[psutil.Process], part: str) -> psutil.Process:
    for process in processes:
        if part in _command(process):
            return process
    raise LookupError(f"no process of {part}")


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
