"""Runs tritonserver, restarts it when it dies, and exits with its exit code on SIGINT or SIGTERM.

A server that never became ready is started max_failed_starts times, with exponential backoff; one that did is restarted
without a limit.
"""

import ctypes
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FrameType

import psutil

PROBE_SECONDS = 0.5
# tritonserver's own default.
HTTP_PORT = 8000
# Exit code of a server that loads but cannot serve (qwen3_tts_engine/lifecycle/guard.py).
UNUSABLE = -signal.SIGUSR1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# A stub exits a third of a second after its server, its guard at most two seconds later.
ORPHAN_SECONDS = 5.0


@dataclass(frozen=True)
class Patience:
    max_failed_starts: int = 4
    pause_seconds: float = 1.0
    """Doubled after each failed start."""

    def pause(self, failed_starts: int) -> float:
        return self.pause_seconds * float(2**failed_starts)


@dataclass
class Supervisor:
    command: Sequence[str]
    environment: Callable[[], AbstractContextManager[Mapping[str, str]]]
    """Entered before each start, exited when that server has ended."""
    is_ready: Callable[[], bool]
    patience: Patience = Patience()
    end_orphans: Callable[[], object] = lambda: None
    """Called after a server has exited, before the next start."""
    _stopping: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[bytes] | None = None
    _signal: int = signal.SIGTERM

    def run(self) -> int:
        """The exit code for a shell."""
        failed_starts = 0
        while True:
            code, became_ready = self._run_once()
            if self._stopping.is_set() or code == 0:
                return _shell_code(code)
            failed_starts = 0 if became_ready else failed_starts + 1
            if failed_starts == self.patience.max_failed_starts:
                _log(f"it never became ready in {failed_starts} starts, the last exit code is {_shell_code(code)}")
                return _shell_code(code)
            pause = self.patience.pause(failed_starts)
            _log(f"tritonserver ended with exit code {_shell_code(code)}; it is started again in {pause:g} s")
            self._stopping.wait(pause)

    def stop(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler: forwards the signal."""
        self._signal = number
        self._stopping.set()
        if self._process is not None:
            self._process.send_signal(number)

    def _run_once(self) -> tuple[int, bool]:
        """Exit code, negative for a signal, and whether the server had become ready."""
        if self._stopping.is_set():
            return 0, False
        became_ready = False
        with self.environment() as environment:
            if self._stopping.is_set():
                return 0, False
            # Python ignores SIGXFSZ, and so must the server (protection.bound_files).
            self._process = subprocess.Popen(
                self.command, env=environment, preexec_fn=end_with_parent, restore_signals=False
            )
            if self._stopping.is_set():  # during the start
                self._process.send_signal(self._signal)
            while (code := _wait(self._process)) is None:
                became_ready = became_ready or self.is_ready()
        self.end_orphans()
        return code, became_ready and code != UNUSABLE


def supervise(command: Sequence[str], environment: Callable[[], AbstractContextManager[Mapping[str, str]]]) -> int:
    """Runs tritonserver until a signal stops it; returns the exit code."""
    url = f"http://localhost:{_http_port(command)}/v2/models/qwen3_tts/ready"
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(command, environment, lambda: responds(url), end_orphans=end_orphans)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, supervisor.stop)
    return supervisor.run()


def end_orphans() -> None:
    """Kills orphans of a dead server: a stub that waits for a lock of the server never exits."""
    _, alive = psutil.wait_procs(psutil.Process().children(), ORPHAN_SECONDS)
    for process in alive:
        _log(f"killing process {process.pid}, which outlived its server")
        process.kill()
    psutil.wait_procs(alive)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def responds(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _http_port(command: Sequence[str]) -> int:
    ports = [option.partition("=")[2] for option in command if option.startswith("--http-port=")]
    return int(ports[-1]) if ports else HTTP_PORT


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def end_with_parent() -> None:
    """In a child: it ends when the thread that started it does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _log(message: str) -> None:
    print(f"supervisor: {message}", file=sys.stderr, flush=True)
