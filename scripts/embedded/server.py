"""tritonserver without a container: the complete server in the wheel nvidia-pytriton.

    python -m scripts.embedded.server --model-repository model_repository [any option of tritonserver]

It has the Python backend only: choose the codec's form with --model-config-name=python or onnxruntime. With
--backend FOLDER/tensorrt it also has FOLDER/tensorrt/libtriton_tensorrt.so, Triton's own backend for plans.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import typer

from qwen3_tts_client.proxies import bypass_for_local_addresses
from qwen3_tts_client.records.prometheus import parse, scrape
from scripts.embedded.drain import DEFAULT_SECONDS, FILE_VARIABLE, SECONDS_VARIABLE, Drain, responds
from scripts.embedded.gpu_lock import locked_gpu, visible_gpus
from scripts.embedded.installation import ServerError, backend_options, find_tritonserver, server_environment
from scripts.embedded.mps import MpsDaemon
from scripts.embedded.ports import Ports
from scripts.embedded.protection import (
    ADMIN_KEY_VARIABLE,
    HTTP_HEADER,
    AdminKeyError,
    absent,
    bound_files,
    choose_admin_key,
    new_admin_key,
    protections,
)
from scripts.embedded.supervisor import supervise

# Models can be loaded and unloaded at run time. Their configurations are complete: to complete them, Triton starts each
# Python model's process once more.
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*", "--disable-auto-complete-config")
# Its streams have ended before tritonserver is told to end. On a GPU release 2.51 waits so long for a thread of the
# talker's process, which waits for the address of the CUDA memory pool.
EXIT = ("--exit-timeout-secs=5",)
READY_POLL_SECONDS = 0.1
DEFAULT_PORTS = Ports()
READY = "qwen3_tts_ready"
NO_METRICS = re.compile(r"--allow-metrics[= ](false|0|off|no)\b", re.IGNORECASE)
# Files that a developer may have built in the model repository.
BUILT = (
    "__pycache__", "model.onnx*", "model.safetensors", "golden.safetensors", "model.json", "alignment.json",
    "*_encoder*",
)  # fmt: skip


class TritonServer:
    """A running tritonserver process; a context manager that starts, waits until ready, and stops it."""

    def __init__(
        self,
        repository: Path,
        *,
        options: Sequence[str] = (),
        ports: Ports = DEFAULT_PORTS,
        environment: dict[str, str] | None = None,
        log: IO[bytes] | None = None,
        ready_timeout: float = 120.0,
    ) -> None:
        self.ports = ports
        self.admin_key = new_admin_key()
        self._command = server_command(repository, [*ports.options, *options], self.admin_key)
        self._environment = server_environment() | (environment or {})
        self._has_metrics = not NO_METRICS.search(" ".join(options))
        self._mps = ExitStack()
        self._log = log
        self._ready_timeout = ready_timeout
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "TritonServer":
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Raises ServerError for a port that is taken."""
        self.ports.check()
        output = subprocess.STDOUT if self._log else None
        with ExitStack() as stack:
            environment = stack.enter_context(MpsDaemon(self._environment))
            self._process = subprocess.Popen(
                self._command, env=environment, stdout=self._log, stderr=output, restore_signals=False
            )
            bound_files(self._process.pid)
            self._mps = stack.pop_all()

    def wait_ready(self) -> None:
        """Raises ServerError if the server ends first or takes too long."""
        deadline = time.monotonic() + self._ready_timeout
        while not self.is_ready():
            if (code := self.poll()) is not None:
                raise ServerError(f"tritonserver ended with exit code {code} before it was ready; its log says why")
            if time.monotonic() > deadline:
                raise ServerError(f"tritonserver was not ready after {self._ready_timeout:.0f} s; its log says why")
            time.sleep(READY_POLL_SECONDS)

    def is_ready(self, model: str | None = None) -> bool:
        return is_ready(self.ports, model, has_metrics=self._has_metrics)

    def poll(self) -> int | None:
        """The exit code, None while the server runs."""
        assert self._process is not None
        return self._process.poll()

    def wait(self, timeout: float) -> int:
        """The exit code of a server that ends by itself; raises subprocess.TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(timeout)

    def stop(self, timeout: float = 60.0) -> int:
        """Sends SIGTERM, as `docker stop` does; returns the exit code."""
        assert self._process is not None
        with self._mps:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
            try:
                return self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                return self._process.wait()


def is_ready(ports: Ports, model: str | None = None, *, has_metrics: bool = True) -> bool:
    """Whether one of the server's models reports ready, or by default the server and, by its metrics, every talker.

    That of the server is for its start only: Triton 2.51 still reports it after a model has died.
    """
    path = f"models/{model}/ready" if model else "health/ready"
    if not responds(f"http://localhost:{ports.http}/v2/{path}"):
        return False
    return model is not None or not has_metrics or _talkers_serve(ports)


def _talkers_serve(ports: Ports) -> bool:
    """Reads their metrics, since Triton 2.51 does not ask the models. It opens their port after that of its health."""
    if (text := scrape(f"http://localhost:{ports.metrics}/metrics")) is None:
        return False
    return all(value for name, value in parse(text).items() if name.startswith(READY))


def server_command(repository: Path, options: Sequence[str], admin_key: str) -> list[str]:
    """Serves `repository` with `options`, and with the protections that they do not set."""
    server = find_tritonserver()
    # Triton writes its help to standard error, and exits with an error's code.
    usage = subprocess.run(
        [server, "--help"],
        env=server_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    chosen = [*absent(EXIT, options), *protections(options, usage.stdout, admin_key)]
    return [str(server), f"--model-repository={repository}", *chosen, *options]


def make_folder(folder: Path) -> None:
    """Raises ServerError if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ServerError(f"{folder}: {error.strerror}: name a folder that can be written (--build-folder)") from None


def key_file_of(ports: Ports, build_folder: Path) -> Path:
    """Where a server's generated admin key is."""
    return build_folder / f"admin_key-{ports.http}"


def drain_of(ports: Ports, build_folder: Path, seconds: float) -> Drain:
    """The drain of a server; its file is named by the server's port, since servers may share the folder."""
    file = Path(os.environ.get(FILE_VARIABLE) or build_folder / f"drain-{ports.http}").resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    return Drain(file, f"http://localhost:{ports.metrics}/metrics", seconds)


def main(
    context: typer.Context,
    model_repository: Annotated[Path, typer.Option(exists=True, file_okay=False)] = Path("model_repository"),
    build_folder: Annotated[Path, typer.Option(help="folder of the backend directory")] = Path("build"),
    backend: Annotated[
        list[Path] | None, typer.Option(exists=True, file_okay=False, help="folder of a compiled backend")
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0, envvar=SECONDS_VARIABLE, help="time for open streams after SIGTERM or Ctrl-C")
    ] = DEFAULT_SECONDS,
    exclusive_gpu: Annotated[bool, typer.Option(help="refuse to share the GPU with another server")] = False,
) -> None:
    """Serve a model repository and restart a dead server; every other option goes to tritonserver unchanged."""
    bypass_for_local_addresses()
    try:
        make_folder(build_folder)
        ports = Ports.of(context.args)
        # Before the key, since another server on these ports has it in the same file.
        ports.check()
        key_file = key_file_of(ports, build_folder)
        admin_key = choose_admin_key(os.environ, key_file)
        options = [*EXPLICIT, *context.args, *backend_options(build_folder, backend or [])]
        command = server_command(model_repository, options, admin_key)
        if not os.environ.get(ADMIN_KEY_VARIABLE):
            print(f"The key for the header {HTTP_HEADER} is in {key_file}", file=sys.stderr, flush=True)
        bound_files(os.getpid())
        drain = drain_of(ports, build_folder, drain_seconds)
        environment = server_environment() | {FILE_VARIABLE: str(drain.file)}
        with ExitStack() as locks:
            for gpu in visible_gpus(environment):
                locks.enter_context(locked_gpu(gpu, exclusively=exclusive_gpu))
            code = supervise(command, partial(MpsDaemon, environment), drain)
    except (ServerError, AdminKeyError) as error:
        sys.exit(f"error: {error}")
    sys.exit(code)


def run_command(command: Callable[..., None]) -> None:
    """Runs a command of typer, whose context gets the options that it does not know."""
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(command)
    app()


if __name__ == "__main__":
    run_command(main)
