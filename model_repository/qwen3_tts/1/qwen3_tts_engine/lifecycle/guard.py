"""Watchdog: ends tritonserver when one of its model processes dies or cannot serve, so that a supervisor restarts it.

Triton 2.51 does not notice that a stub, the process of a Python model, is gone: streams hang, and every readiness
endpoint reports ready. So each stub starts this file as a separate process, which reads a pipe that only the stub
writes to. End of file without a message means that the stub died. Standard library only, to start in milliseconds.
"""

import contextlib
import ctypes
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

UNLOADED, DEAD, UNUSABLE = b"unloaded", b"dead", b"unusable"
REASONS = {b"": "its process died", DEAD: "its engine died", UNUSABLE: "it cannot serve"}
# Delay before the server of a dead engine is ended, so that the last errors reach the callers.
DELIVERY_SECONDS = 0.5
# Grace period of a stub after its server; a healthy one exits within a third of a second.
STUB_SECONDS = 0.5
# Shared memory of Triton's stubs, which only an orderly shutdown removes.
REGIONS = "/dev/shm/triton_python_backend_shm_region"
INIT = 1
PR_SET_DUMPABLE = 4
# The parent before the model loads.
SERVER = os.getppid()
log = logging.getLogger(__name__)


class Process(NamedTuple):
    number: int
    descriptor: int  # a pidfd, which stays valid when the number is reused


class Guard:
    """The stub's end of the pipe, open while its model is loaded."""

    def __init__(self, model: str) -> None:
        """Raises OSError where the kernel has no pidfd, or tritonserver is gone."""
        server, stub = os.getppid(), os.getpid()
        descriptors = [os.pidfd_open(server), os.pidfd_open(stub)]
        try:
            if os.getppid() != server:
                raise ProcessLookupError(f"tritonserver (process {server}) is gone")
            # In a stub, sys.executable may not be Python.
            python = shutil.which("python3") or sys.executable
            command = [python, "-I", "-S", __file__, model, *map(str, (server, stub, *descriptors))]
            # In a new session, so that Ctrl-C at the terminal reaches only the server.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=descriptors, start_new_session=True, bufsize=0
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self) -> None:
        """The model is unloaded; leave the server running."""
        self._write(UNLOADED)
        self._process.wait()
        # Stubs of newer Triton releases abort at their exit (docs/failures.md), which shall leave no core file.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)

    def end_server(self, *, unusable: bool = False) -> None:
        """End tritonserver after DELIVERY_SECONDS; `unusable` when a restart would not help (exit_signal)."""
        self._write(UNUSABLE if unusable else DEAD)

    def _write(self, message: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        # The guard process may be gone already.
        with contextlib.suppress(OSError, ValueError):
            pipe.write(message)
        with contextlib.suppress(OSError):
            pipe.close()


def exit_signal(message: bytes, server: int) -> signal.Signals:
    """SIGKILL, exit code 137 in a shell; SIGUSR1, 138, for a server that cannot serve.

    The kernel protects the first process of a container from both; it gets SIGTERM, which lets its streams end.
    """
    if server == INIT:
        return signal.SIGTERM
    return signal.SIGUSR1 if message == UNUSABLE else signal.SIGKILL


def start(model: str) -> Guard | None:
    """The guard of this process; None where the kernel has no pidfd. Ends the process if its server is gone."""
    if os.getppid() != SERVER:
        # Else it waits for its server for ever.
        os._exit(1)
    try:
        return Guard(model)
    except OSError as error:
        log.warning("no guard, a dead process will not end the server: %s", error)
        return None


def main(model: str, server: Process, stub: Process) -> None:
    regions = _regions(stub)
    message = _read_message(server)
    if message == UNLOADED:
        return
    if message is not None and not _is_gone(server, DELIVERY_SECONDS if message else 0):
        regions |= _regions(server)
        _end(server, exit_signal(message, server.number), f"{model}: {REASONS[message]}")
    # A stub that waits for a response of the dead server never exits and keeps its GPU memory.
    if not _is_gone(stub, STUB_SECONDS):
        _send(stub, signal.SIGKILL)
    for region in regions:
        Path(region).unlink(missing_ok=True)


def _read_message(server: Process) -> bytes | None:
    """The stub's message, empty at its death; None when the server ends first."""
    ended, _, _ = select.select([sys.stdin, server.descriptor], [], [])
    return sys.stdin.buffer.read() if sys.stdin in ended else None


def _end(server: Process, chosen: signal.Signals, reason: str) -> None:
    print(f"guard: {reason}; ending tritonserver with {chosen.name}", file=sys.stderr, flush=True)
    _send(server, chosen)
    _is_gone(server, None)


def _send(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process.descriptor, number)


def _is_gone(process: Process, wait_seconds: float | None) -> bool:
    return bool(select.select([process.descriptor], [], [], wait_seconds)[0])


def _regions(process: Process) -> set[str]:
    """Triton's shared memory regions that a process maps."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process.number}/maps").read_text().splitlines()
        return {line[line.index(REGIONS) :] for line in lines if REGIONS in line and not line.endswith("(deleted)")}
    return set()


if __name__ == "__main__":
    server, stub, *descriptors = map(int, sys.argv[2:])
    main(sys.argv[1], Process(server, descriptors[0]), Process(stub, descriptors[1]))
