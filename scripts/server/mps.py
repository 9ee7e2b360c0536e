"""NVIDIA's Multi-Process Service: talker and codec run on the GPU at the same time (docs/operations.md, MPS)."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from scripts.server.installation import ServerError
from scripts.server.supervisor import end_with_parent

MPS_VARIABLE = "QWEN3_TTS_MPS"
PIPES, LOGS, DEVICES = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"
CONTROL = "nvidia-cuda-mps-control"
# Where some container runtimes mount the driver's programs.
DRIVER_PROGRAMS = "/usr/local/nvidia/bin"
GPU = Path("/dev/nvidiactl")
PROBE = (sys.executable, "-I", "-S", str(Path(__file__).with_name("mps_probe.py")))
START_SECONDS = 30.0
# Fits, after a drain and tritonserver's end, in the time that compose gives.
QUIT_SECONDS = 5.0
POLL_SECONDS = 0.05
COST = (
    "without MPS talker and codec take turns on the GPU: a fifth to a third less throughput at 64 to 1 000 streams, "
    "measured on one H200"
)


class MpsError(RuntimeError):
    """The daemon cannot be used; the message is the reason."""


class MpsDaemon:
    """The MPS daemon of one run of the server: a context manager that yields the server's environment.

    `environment` is the server's without MPS. It is yielded unchanged if QWEN3_TTS_MPS is off, there is no GPU, the
    user runs a daemon (CUDA_MPS_PIPE_DIRECTORY), or no daemon can be used; the last prints a line with the reason.
    Raises ServerError for an unknown QWEN3_TTS_MPS. The daemon ends with the thread that entered.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        if (setting := environment.get(MPS_VARIABLE) or "auto") not in ("auto", "off"):
            raise ServerError(f"{MPS_VARIABLE} is '{setting}': it must be auto or off")
        # CUDA reads both values as no device.
        has_gpu = GPU.exists() and environment.get(DEVICES) not in ("", "-1")
        self._is_wanted = setting == "auto" and has_gpu and not environment.get(PIPES)
        self._environment = dict(environment)
        self._stack = ExitStack()

    def __enter__(self) -> dict[str, str]:
        if not self._is_wanted:
            return self._environment
        with ExitStack() as stack:
            try:
                self._start(stack)
            except (MpsError, OSError) as error:
                _log(f"{error}; {COST}")
                return self._environment
            self._stack = stack.pop_all()
        return self._clients

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        """`stack` gets what ends the daemon. Raises MpsError, and OSError from the system."""
        program = shutil.which(CONTROL, path=f"{self._environment.get('PATH', '')}{os.pathsep}{DRIVER_PROGRAMS}")
        if program is None:
            raise MpsError(f"{CONTROL} is not on PATH")
        # In /tmp, since the path of a socket has at most 108 bytes.
        folder = stack.enter_context(TemporaryDirectory(prefix="mps-", dir="/tmp", ignore_cleanup_errors=True))
        self._program, self._clients = program, self._environment | {PIPES: folder, LOGS: folder}
        log = stack.enter_context((Path(folder) / "daemon.log").open("a+"))
        self._process = subprocess.Popen(
            [program, "-f"],
            env=_daemon_environment(self._clients),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=end_with_parent,
            # Ctrl-C at the terminal reaches the server only, which the daemon must outlive.
            start_new_session=True,
        )
        stack.callback(self._stop)
        if problem := self._find_problem(log):
            log.seek(0)
            raise MpsError(": ".join([problem, *log.read().strip().splitlines()[-1:]]))
        _log(f"talker and codec share the GPU, the daemon's logs are in {folder}")

    def _find_problem(self, log: TextIO) -> str | None:
        """None once CUDA uses the daemon; the probe's output goes to `log`."""
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self._control("get_server_list", deadline - time.monotonic()):
                if (code := self._process.poll()) is not None:
                    return f"the MPS daemon ended with exit code {code}"
                time.sleep(POLL_SECONDS)
            left = deadline - time.monotonic()
            probe = subprocess.run(PROBE, env=self._clients, stdout=log, stderr=log, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            return f"MPS was not ready after {START_SECONDS:g} s"
        return "CUDA cannot use the MPS daemon" if probe.returncode else None

    def _control(self, command: str, seconds: float) -> bool:
        """Whether a daemon takes the command; raises subprocess.TimeoutExpired."""
        done = subprocess.run(
            [self._program],
            env=self._clients,
            input=f"{command}\n".encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
        return done.returncode == 0

    def _stop(self) -> None:
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._control("quit", QUIT_SECONDS)
                self._process.wait(QUIT_SECONDS)
        if self._process.poll() is None:
            # Its group includes the MPS server.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _daemon_environment(clients: Mapping[str, str]) -> dict[str, str]:
    """A daemon renumbers the devices that it is given, so given index 1 its clients would have to ask for index 0."""
    devices = clients.get(DEVICES, "0")
    is_renumbered = devices != "0" and set(devices) <= set("0123456789, ")
    return {name: value for name, value in clients.items() if not (name == DEVICES and is_renumbered)}


def _log(message: str) -> None:
    print(f"mps: {message}", file=sys.stderr, flush=True)
