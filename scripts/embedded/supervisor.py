"""Runs tritonserver, starts it again when it dies, and ends with its exit code when it is asked to stop.

A server that never became ready is started max_failed_starts times, with longer and longer pauses in between; one that
did is started again for as often as it takes.
"""

import ctypes
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

import psutil

PROBE_SECONDS = 0.5
# tritonserver's own default.
HTTP_PORT = 8000
# How the guard ends a server that loads and cannot serve (qwen3_tts_engine/lifecycle/guard.py).
UNUSABLE = -signal.SIGUSR1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# A stub ends a third of a second after its server, its guard two seconds later at the latest.
ORPHAN_SECONDS = 5.0


@dataclass(frozen=True)
class Patience:
    max_failed_starts: int = 4
    pause_seconds: float = 1.0
    """After a failed start twice as long as before."""

    def pause(self, failed_starts: int) -> float:
        return self.pause_seconds * float(2**failed_starts)


@dataclass
class Supervisor:
    command: Sequence[str]
    environment: Mapping[str, str]
    is_ready: Callable[[], bool]
    patience: Patience = Patience()
    end_orphans: Callable[[], object] = lambda: None
    """Called when a server has ended, before the next one starts."""
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
                _say(f"it never became ready in {failed_starts} starts, the last exit code is {_shell_code(code)}")
                return _shell_code(code)
            pause = self.patience.pause(failed_starts)
            _say(f"tritonserver ended with exit code {_shell_code(code)}; it is started again in {pause:g} s")
            self._stopping.wait(pause)

    def stop(self, number: int, frame: FrameType | None = None) -> None:
        """A signal handler: hands the signal on."""
        self._signal = number
        self._stopping.set()
        if self._process is not None:
            self._process.send_signal(number)

    def _run_once(self) -> tuple[int, bool]:
        """Exit code, negative for a signal, and whether the server had become ready."""
        if self._stopping.is_set():
            return 0, False
        # Python ignores SIGXFSZ, and so must the server (protection.bound_files).
        self._process = subprocess.Popen(
            self.command, env=self.environment, preexec_fn=_end_with_parent, restore_signals=False
        )
        if self._stopping.is_set():  # while it was started
            self._process.send_signal(self._signal)
        became_ready = False
        while (code := _wait(self._process)) is None:
            became_ready = became_ready or self.is_ready()
        self.end_orphans()
        return code, became_ready and code != UNUSABLE


def supervise(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run tritonserver until it is asked to stop; returns the exit code."""
    url = f"http://localhost:{_http_port(command)}/v2/models/qwen3_tts/ready"
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(command, environment, lambda: answers(url), end_orphans=end_orphans)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, supervisor.stop)
    return supervisor.run()


def end_orphans() -> None:
    """End what a dead server left behind: a stub that waits for a lock which the server held waits for ever."""
    _, alive = psutil.wait_procs(psutil.Process().children(), ORPHAN_SECONDS)
    for process in alive:
        _say(f"process {process.pid} outlived its server and is killed")
        process.kill()
    psutil.wait_procs(alive)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def answers(url: str) -> bool:
    """Whether something is served there."""
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


def _end_with_parent() -> None:
    """In the child: a supervisor that is killed takes the server along."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _say(message: str) -> None:
    print(f"supervisor: {message}", file=sys.stderr, flush=True)
