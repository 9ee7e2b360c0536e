"""A tritonserver: its command, and a process of it for tests and benchmarks."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from qwen3_tts_client.records.prometheus import parse, scrape
from qwen3_tts_engine.checkpoint.manifest import MANIFEST
from qwen3_tts_engine.codec import contract
from scripts.server.drain import responds
from scripts.server.installation import ServerError, find_tritonserver, server_environment
from scripts.server.mps import MpsDaemon
from scripts.server.ports import Ports
from scripts.server.protection import absent, bound_files, new_admin_key, protections

# Models can be loaded and unloaded at run time. Their configurations are complete: to complete them, Triton starts each
# Python model's process once more.
MODE = "--model-control-mode"
EXPLICIT = (f"{MODE}=explicit", "--load-model=*", "--disable-auto-complete-config")
# Its streams have ended before tritonserver is told to end. On a GPU release 2.51 waits so long for a thread of the
# talker's process, which waits for the address of the CUDA memory pool.
EXIT = ("--exit-timeout-secs=5",)
READY_POLL_SECONDS = 0.1
DEFAULT_PORTS = Ports()
# Configuration of code2wav by the form of its file; a plan has the default one.
CONFIGURATIONS = {"onnx": "onnxruntime", "python": "python"}
CONFIGURATION = "--model-config-name"
READY = "qwen3_tts_ready"
NO_METRICS = re.compile(r"--allow-metrics[= ](false|0|off|no)\b", re.IGNORECASE)
# Files that a developer may have built in the model repository.
BUILT = (
    "__pycache__", "model.onnx*", "model.safetensors", "golden.safetensors", "model.json", "alignment-*.json",
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
    """Serves `repository` with `options`, and with the defaults and protections that they do not set."""
    server = find_tritonserver()
    explicit = [] if any(option.startswith(MODE) for option in options) else EXPLICIT
    # Triton writes its help to standard error, and exits with an error's code.
    usage = subprocess.run(
        [server, "--help"],
        env=server_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    defaults = absent([*EXIT, *codec_configuration(repository)], options)
    chosen = [*explicit, *defaults, *protections(options, usage.stdout, admin_key)]
    return [str(server), f"--model-repository={repository}", *chosen, *options]


def codec_configuration(repository: Path) -> list[str]:
    """The option that chooses the configuration of the exported codec's form."""
    manifest = repository / contract.MODEL_NAME / "1" / MANIFEST
    if not manifest.is_file():
        return []  # the talker says what is missing
    name = CONFIGURATIONS.get(json.loads(manifest.read_text()).get("form"))
    return [f"{CONFIGURATION}={name}"] if name else []
