"""Ends tritonserver when a process of it dies or cannot serve, so that whatever started the server starts it again.

Triton 2.51 does not notice that a stub, the process of a Python model, is gone: streams hang, and every readiness
endpoint calls it ready. So each stub starts this file as a process of its own, which reads a pipe that only the stub
can write to. Its end without a farewell means that the stub died. The standard library only: it starts in milliseconds.
"""

import contextlib
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FAREWELL, DEAD, UNUSABLE = b"farewell", b"dead", b"unusable"
REASONS = {b"": "its process died", DEAD: "its engine died", UNUSABLE: "it cannot serve"}
# From a dead engine's last errors to the end of the server, so that they reach the callers.
DELIVERY_SECONDS = 0.5
# A stub ends itself a third of a second after its server.
STUB_SECONDS = 2.0
# Shared memory of Triton's stubs, which only a server that ends in order removes.
REGIONS = "/dev/shm/triton_python_backend_shm_region"
INIT = 1
log = logging.getLogger(__name__)


class Process(NamedTuple):
    number: int
    descriptor: int  # a pidfd, which stays with this process when its number is reused


class Guard:
    """The stub's end of the pipe. A stub has one for as long as its model is loaded."""

    def __init__(self, model: str) -> None:
        """Raises OSError where the kernel has no pidfd, or tritonserver is gone."""
        server, stub = os.getppid(), os.getpid()
        descriptors = [os.pidfd_open(server), os.pidfd_open(stub)]
        try:
            if os.getppid() != server:
                raise ProcessLookupError(f"tritonserver (process {server}) is gone")
            # In a stub, sys.executable need not be Python.
            python = shutil.which("python3") or sys.executable
            command = [python, "-I", "-S", __file__, model, *map(str, (server, stub, *descriptors))]
            # A session of its own: Ctrl-C at the terminal is for the server.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=descriptors, start_new_session=True, bufsize=0
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self) -> None:
        """The model is unloaded: nothing is to be ended."""
        self._say(FAREWELL)
        self._process.wait()

    def end_server(self, *, unusable: bool = False) -> None:
        """End tritonserver in DELIVERY_SECONDS; `unusable` when starting it again will not help (exit_signal)."""
        self._say(UNUSABLE if unusable else DEAD)

    def _say(self, last_word: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        # A guard that has gone has nothing left to do.
        with contextlib.suppress(OSError, ValueError):
            pipe.write(last_word)
        with contextlib.suppress(OSError):
            pipe.close()


def exit_signal(last_word: bytes, server: int) -> signal.Signals:
    """SIGKILL, exit code 137 in a shell; SIGUSR1, 138, for a server that cannot serve.

    The kernel protects the first process of a container from both: that one is asked to end, and lets its streams end.
    """
    if server == INIT:
        return signal.SIGTERM
    return signal.SIGUSR1 if last_word == UNUSABLE else signal.SIGKILL


def start(model: str) -> Guard | None:
    """The guard of this process, None where the kernel has none to offer."""
    try:
        return Guard(model)
    except OSError as error:
        log.warning("a dead process will not end the server: %s", error)
        return None


def main(model: str, server: Process, stub: Process) -> None:
    regions = _regions(stub)
    last_word = _last_word(server)
    if last_word == FAREWELL:
        return
    if last_word is not None and not _is_gone(server, DELIVERY_SECONDS if last_word else 0):
        regions |= _regions(server)
        _end(server, exit_signal(last_word, server.number), f"{model}: {REASONS[last_word]}")
    # One that waits for an answer of the server waits for ever, and keeps its GPU memory.
    if not _is_gone(stub, STUB_SECONDS):
        _send(stub, signal.SIGKILL)
    for region in regions:
        Path(region).unlink(missing_ok=True)


def _last_word(server: Process) -> bytes | None:
    """What the stub says before it closes the pipe, None when the server ends before that."""
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
    """Triton's shared memory that a process has mapped."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process.number}/maps").read_text().splitlines()
        return {line[line.index(REGIONS) :] for line in lines if REGIONS in line and not line.endswith("(deleted)")}
    return set()


if __name__ == "__main__":
    server, stub, *descriptors = map(int, sys.argv[2:])
    main(sys.argv[1], Process(server, descriptors[0]), Process(stub, descriptors[1]))
