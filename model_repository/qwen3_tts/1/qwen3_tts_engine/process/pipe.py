"""Messages between two processes through a pipe, in order."""

import contextlib
import fcntl
import os
import pickle
import select
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

# Kernel buffer; also the most that an unprivileged process may ask for.
PIPE_BYTES = 1 << 20
LENGTH_BYTES = 4


class Writer:
    """The end that sends; it never blocks its callers.

    A message goes into the kernel's buffer at once, since a thread in between costs another wake-up. What the buffer
    cannot take follows from a thread. Messages to a process that is gone are dropped.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        """Takes over `descriptor`; `name` names the thread."""
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError):  # where the user's pipes take too much memory already
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._waiting: deque[memoryview] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Messages that the kernel's buffer has not taken yet."""
        return len(self._waiting)

    def send(self, message: object) -> None:
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        frame = memoryview(len(content).to_bytes(LENGTH_BYTES, "little") + content)
        with self._changed:
            if self._closed:
                return
            if not self._waiting:
                frame = self._write(frame)
            if frame:
                self._waiting.append(frame)
                self._changed.notify()

    def close(self) -> None:
        """Send what waits, then end the other process's messages. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._await_work():
            select.select([], [self._descriptor], [])
            with self._changed:
                self._waiting[0] = self._write(self._waiting[0])
                if not self._waiting[0]:
                    self._waiting.popleft()
        os.close(self._descriptor)

    def _await_work(self) -> bool:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return bool(self._waiting)

    def _write(self, frame: memoryview) -> memoryview:
        """Write what the kernel takes now; returns the rest."""
        try:
            return frame[os.write(self._descriptor, frame) :]
        except BlockingIOError:
            return frame
        except BrokenPipeError:
            return frame[:0]


def messages(descriptor: int) -> Iterator[Any]:
    """What the other process sends, until it has closed its end or is gone. Takes over `descriptor`."""
    received = bytearray()
    with contextlib.closing(os.fdopen(descriptor, "rb", buffering=0)) as pipe:
        while chunk := os.read(pipe.fileno(), PIPE_BYTES):
            received += chunk
            start = 0
            while (body := start + LENGTH_BYTES) <= len(received):
                end = body + int.from_bytes(received[start:body], "little")
                if end > len(received):
                    break
                yield pickle.loads(memoryview(received)[body:end])
                start = end
            del received[:start]
