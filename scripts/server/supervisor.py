"""Runs tritonserver, restarts it when it dies, and ends it on SIGINT or SIGTERM.

The first signal drains a ready server (drain.py), the next one ends its streams, and one more kills it. tritonserver
itself is told to end once no stream is open. The exit code is then 0, otherwise the server's.

A server that never became ready is started max_failed_starts times, with exponential backoff; one that did is restarted
without a limit.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

import psutil

from scripts.server.drain import EXIT_SECONDS, POLL_SECONDS, Drain, responds
from scripts.server.ports import Ports

PROBE_SECONDS = 0.5
STDERR = 2
# tritonserver's own defaults.
# Exit code of a server that loads but cannot serve (qwen3_tts_engine/lifecycle/guard.py).
UNUSABLE = -signal.SIGUSR1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# A stub exits a third of a second after its server, or its guard kills it after half a second.
ORPHAN_SECONDS = 5.0
# Probes in a row that find the port of a running server closed: it was told to end.
CLOSED_PROBES = 2


@dataclass(frozen=True)
class Patience:
    max_failed_starts: int = 4
    pause_seconds: float = 1.0
    """Before the second start, doubled after each failed one; a server that was ready is started again at once."""

    def pause(self, failed_starts: int) -> float:
        return self.pause_seconds * float(2 ** (failed_starts - 1)) if failed_starts else 0.0


@dataclass
class Supervisor:
    command: Sequence[str]
    environment: Callable[[], AbstractContextManager[Mapping[str, str]]]
    """Entered before each start, exited when that server has ended."""
    is_ready: Callable[[], bool]
    patience: Patience = Patience()
    end_orphans: Callable[[], object] = lambda: None
    """Called after a server has exited, before the next start."""
    drain: Drain | None = None
    """None ends the server without a drain."""
    exit_seconds: float = EXIT_SECONDS
    beside: Callable[[int], AbstractContextManager[object]] = nullcontext
    """What runs beside a server, by its process id."""
    listens: Callable[[], bool] = lambda: True
    """Whether a server that was ready still accepts connections."""
    _stopping: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[bytes] | None = None
    _signal: int = signal.SIGTERM
    _became_ready: bool = False
    _is_draining: bool = False
    _is_drained: bool = False
    _closed_probes: int = 0
    _killed_at: float | None = None
    """Monotonic seconds; None until the server has been told to end."""

    def run(self) -> int:
        """The exit code for a shell."""
        failed_starts = 0
        while True:
            code, became_ready = self._run_once()
            if self._is_drained:
                return 0
            if self._stopping.is_set() or code == 0:
                return _shell_code(code)
            failed_starts = 0 if became_ready else failed_starts + 1
            if failed_starts == self.patience.max_failed_starts:
                _log(f"it never became ready in {failed_starts} starts, the last exit code is {_shell_code(code)}")
                return _shell_code(code)
            pause = self.patience.pause(failed_starts)
            when = f"in {pause:g} s" if pause else "now"
            _log(f"tritonserver ended with exit code {_shell_code(code)}; it is started again {when}")
            self._stopping.wait(pause)

    def stop(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler: begins a drain, ends the streams, or kills the server."""
        self._signal, is_first = number, not self._stopping.is_set()
        self._stopping.set()
        if self.drain is not None and is_first and (self._became_ready or self.is_ready()):
            _log(f"streams finish, within {self.drain.seconds:g} s; a second signal ends them")
            self.drain.begin()
            self._is_draining = True
        elif self.drain is not None and self._is_draining and not self.drain.is_ending():
            self.drain.end()
        else:
            self._end()

    def _run_once(self) -> tuple[int, bool]:
        """Exit code, negative for a signal, and whether the server had become ready."""
        if self._stopping.is_set():
            return 0, False
        if self.drain is not None:
            self.drain.clear()
        with self.environment() as environment:
            if self._stopping.is_set():
                return 0, False
            # Python ignores SIGXFSZ, and so must the server (protection.bound_files).
            self._process = subprocess.Popen(
                self.command,
                env=environment,
                # Killed, since after SIGTERM it would wait for open streams.
                preexec_fn=partial(end_with_parent, signal.SIGKILL),
                restore_signals=False,
                # Ctrl-C at the terminal would end the server before it is drained.
                start_new_session=True,
            )
            # A signal that came before there was a process; a later one has reached it, and a second one kills.
            if self._stopping.is_set() and self._killed_at is None:
                self._end()
            with self.beside(self._process.pid):
                code = self._watch(self._process)
        became_ready, self._became_ready = self._became_ready, False
        self.end_orphans()
        return code, became_ready and code != UNUSABLE

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code, negative for a signal; ends a server that has been drained, kills one that does not end."""
        is_told = False
        while (code := _wait(process, POLL_SECONDS if self._is_draining else PROBE_SECONDS)) is None:
            self._became_ready = self._became_ready or self.is_ready()
            if not self._stopping.is_set() and self._has_closed():
                _log("tritonserver was told to end: its streams end, and it is not started again")
                is_told, self._killed_at = True, time.monotonic() + self.exit_seconds
                self._stopping.set()
                if self.drain is not None:
                    self.drain.end()
            if self._is_draining and self.drain is not None and self.drain.is_over():
                _log("the drain is over; tritonserver ends")
                self._is_drained = True
                self._end()
            if self._killed_at is not None and time.monotonic() > self._killed_at:
                _log(f"tritonserver has not ended within {self.exit_seconds:g} s; it is killed")
                self._is_drained = self._is_drained or is_told
                process.kill()
        if is_told and code < 0 and not self._is_drained:  # it was dying
            self._stopping.clear()
            self._killed_at = None
        return code

    def _has_closed(self) -> bool:
        """Whether a server that was ready accepts no connections any more: tritonserver got a signal itself."""
        self._closed_probes = self._closed_probes + 1 if self._became_ready and not self.listens() else 0
        return self._closed_probes == CLOSED_PROBES

    def _end(self) -> None:
        """Forwards the signal; kills a server that has been told before."""
        self._is_draining = False
        if self._process is None:
            return
        if self._killed_at is None:
            self._killed_at = time.monotonic() + self.exit_seconds
            self._process.send_signal(self._signal)
        else:
            self._process.kill()


def supervise(
    command: Sequence[str],
    environment: Callable[[], AbstractContextManager[Mapping[str, str]]],
    drain: Drain | None = None,
) -> int:
    """Runs tritonserver until a signal stops it; returns the exit code."""
    ports = Ports.of(command)
    url = f"http://localhost:{ports.http}/v2/models/qwen3_tts/ready"
    adopt_orphans()
    supervisor = Supervisor(
        command,
        environment,
        lambda: responds(url),
        end_orphans=end_orphans,
        drain=drain,
        beside=partial(stream_check, ports.grpc),
        listens=lambda: listens(ports.http),
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, supervisor.stop)
    return supervisor.run()


def adopt_orphans() -> None:
    """Orphans among this process's descendants become its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_orphans() -> None:
    """Kills orphans of a dead server: a stub that waits for a lock of the server never exits."""
    _, alive = psutil.wait_procs(psutil.Process().children(), ORPHAN_SECONDS)
    for process in alive:
        _log(f"killing process {process.pid}, which outlived its server")
        process.kill()
    psutil.wait_procs(alive)


@contextmanager
def stream_check(port: int, process: int) -> Iterator[None]:
    """Ends tritonserver when its streams hang."""
    command = [sys.executable, "-m", "scripts.server.stream_check", f"--port={port}", f"--process={process}"]
    with subprocess.Popen(command, preexec_fn=end_with_parent, start_new_session=True) as check:
        yield
        check.terminate()


def listens(port: int) -> bool:
    """Whether a process of this machine accepts connections, or is too busy to."""
    try:
        socket.create_connection(("localhost", port), PROBE_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def end_with_parent(by: signal.Signals = signal.SIGTERM) -> None:
    """Called in a child, which then gets this signal when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)


def _log(message: str) -> None:
    # Not print, which fails in a signal handler that interrupts another print.
    os.write(STDERR, f"supervisor: {message}\n".encode())
