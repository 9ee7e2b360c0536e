"""Reports what a server finds on this machine, and starts one to see whether its talker and codec are proven.

python -m scripts.server doctor --checkpoint CHECKPOINT

Paste its output into a bug report. It asks for no network and sends nothing.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import torch
import typer

from qwen3_tts_client.records.environment import commit
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import CodecManifest
from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.config import ENVIRONMENT_PREFIX, MAIN_MODEL, SECRET_SETTINGS
from qwen3_tts_engine.talker import cublas, mps
from qwen3_tts_engine.talker.kernels.kernel_path import CHOICE_VARIABLE, kernel_path
from scripts.server.installation import ServerError, backend_options, find_tritonserver
from scripts.server.mps import CONTROL, DRIVER_PROGRAMS
from scripts.server.ports import Ports
from scripts.server.tritonserver import TritonServer

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "triton", "cuda-bindings", "numpy", "tensorrt", "onnxruntime", "tritonclient", "nvidia-pytriton")
# Facts about each GPU from NVIDIA's driver.
GPU_FIELDS = ("name", "compute_cap", "driver_version", "memory.total", "memory.free", "mig.mode.current")
SHARES = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
# Lines of a server's log that a report keeps: proofs, memory, and whatever went wrong.
KEPT = re.compile(
    r"golden cases|GPU memory|share the GPU|CUDA graphs: |cuBLAS|replace the|could not be built|no request is served"
    r"|is no setting|failed to load|error:|\wError:|died",
)
SECRET = re.compile("KEY|TOKEN|PASSWORD|DSN", re.IGNORECASE)
POLL_SECONDS = 0.2
Line = tuple[str, object]


def main(
    checkpoint: Annotated[str, typer.Option(envvar="QWEN3_TTS_CHECKPOINT", help="folder or hub id")],
    model_repository: Annotated[Path, typer.Option(exists=True, file_okay=False)] = ROOT / "model_repository",
    start: Annotated[bool, typer.Option(help="start a server on free ports, and stop it")] = True,
    seconds: Annotated[float, typer.Option(min=1, help="that the start may take")] = 180.0,
) -> None:
    """Print machine, GPU, packages, checkpoint, settings and the verdict of the proofs; exit with 1 if one fails."""
    for title, lines in (
        ("Machine", machine()),
        ("GPU", gpus()),
        ("Packages", packages()),
        ("Checkpoint", models(checkpoint, model_repository)),
        ("Settings", settings()),
    ):
        show(title, lines)
    if start and not verdict(checkpoint, model_repository, seconds):
        sys.exit(1)


def show(title: str, lines: Iterator[Line]) -> None:
    print(f"{title}")
    for name, value in lines:
        print(f"  {name:<18} {value}", flush=True)


def machine() -> Iterator[Line]:
    yield "system", f"{platform.platform()}, Python {platform.python_version()}"
    yield "processor", f"{os.cpu_count()} cores, {platform.machine()}"
    yield "memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.1f} GiB"
    yield "commit", commit() or "not a git checkout"


def gpus() -> Iterator[Line]:
    if (smi := driver_program("nvidia-smi")) is None:
        yield "driver", "nvidia-smi is not on PATH"
    else:
        command = [smi, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in (done.stdout or done.stderr).strip().splitlines():
            yield "driver", line
    if not torch.cuda.is_available():
        yield "PyTorch", "sees no CUDA device"
        return
    device = torch.device("cuda", torch.cuda.current_device())
    yield from _used_gpu(device)


def driver_program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), DRIVER_PROGRAMS]))


def _used_gpu(device: torch.device) -> Iterator[Line]:
    found = torch.cuda.get_device_properties(device)
    free, total = (size / (1 << 30) for size in torch.cuda.mem_get_info(device))
    capability = torch.cuda.get_device_capability(device)
    yield "PyTorch", f"{found.name}, {found.multi_processor_count} multiprocessors, CUDA {torch.version.cuda}"
    yield "memory", f"{free:.1f} of {total:.1f} GiB free"
    yield "kernels", f"the {kernel_path(capability, os.environ.get(CHOICE_VARIABLE, 'auto')).name} path"
    yield "cuBLAS", "right" if cublas.is_whole(device) else f"wrong: {cublas.PARTIAL}"
    startable = "the launcher starts it" if driver_program(CONTROL) else f"no {CONTROL} on PATH"
    yield "MPS", "active" if mps.is_active(device.index) else startable
    for name in SHARES:
        if value := os.environ.get(name):
            yield name, value


def packages() -> Iterator[Line]:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"
    try:
        yield "tritonserver", find_tritonserver()
    except ServerError as error:
        yield "tritonserver", error
    yield "C compiler", shutil.which("cc") or shutil.which("gcc") or "none: kernels cannot be built"


def models(checkpoint: str, repository: Path) -> Iterator[Line]:
    try:
        opened = Checkpoint.open(checkpoint)
        config = opened.config
        yield "folder", opened.folder
        yield "kind", f"{config.tts_model_size} {config.tts_model_type}, codec {opened.codec_digest[:12]}"
    except CheckpointError as error:
        yield "folder", error
    try:
        manifest = CodecManifest.read(repository / contract.MODEL_NAME / "1")
    except CheckpointError as error:
        yield contract.MODEL_NAME, error
        return
    yield contract.MODEL_NAME, f"form {manifest.form}, codec {manifest.codec_digest[:12]}, PyTorch {manifest.torch}"
    if manifest.engine:
        yield "plan", manifest.engine


def settings() -> Iterator[Line]:
    for name, value in sorted(os.environ.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            is_secret = SECRET.search(name) or name.removeprefix(ENVIRONMENT_PREFIX).lower() in SECRET_SETTINGS
            yield name, "(set, not shown)" if is_secret else value


def verdict(checkpoint: str, repository: Path, seconds: float) -> bool:
    """Whether a server becomes ready, which both proofs precede; prints what its log says of them."""
    print("Start")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        begun = time.perf_counter()
        problem = started(checkpoint, repository, Path(folder), log, seconds)
        for line in kept_lines(log.read_text(errors="replace") if log.is_file() else ""):
            print(f"  {line}")
    print(f"  {problem or f'ready after {time.perf_counter() - begun:.1f} s: talker and codec are proven'}")
    return problem is None


def started(checkpoint: str, repository: Path, build: Path, log: Path, seconds: float) -> str | None:
    """None once the talker serves; else why it does not."""
    try:
        options = backend_options(build)
        environment = {"QWEN3_TTS_CHECKPOINT": checkpoint}
        with log.open("wb") as file:
            server = TritonServer(
                repository,
                options=options,
                ports=Ports.free(),
                environment=environment,
                log=file,
                ready_timeout=seconds,
            )
            with server:
                return awaited(lambda: server.is_ready(MAIN_MODEL), lambda: server.poll(), seconds)
    except (ServerError, CheckpointError) as error:
        return f"not ready: {error}"


def awaited(is_ready: Callable[[], bool], ended: Callable[[], int | None], seconds: float) -> str | None:
    deadline = time.monotonic() + seconds
    while not is_ready():
        if (code := ended()) is not None:
            return f"not ready: tritonserver ended with exit code {code}"
        if time.monotonic() > deadline:
            return f"not ready after {seconds:g} s (--seconds)"
        time.sleep(POLL_SECONDS)
    return None


def kept_lines(log: str) -> list[str]:
    """The messages that a report keeps, without what Triton's logger puts before them, each once."""
    messages = (re.sub(r'^[IWE]\d{4} .*?\] "?|"$', "", line.strip()) for line in log.splitlines() if KEPT.search(line))
    return list(dict.fromkeys(messages))
