"""Messages between two processes through a pipe, in order."""

import contextlib
import fcntl
import os
import pickle
import select
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any

# Kernel buffer; also the most that an unprivileged process may ask for.
PIPE_BYTES = 1 << 20
LENGTH_BYTES = 4
# Frames of one write; the kernel takes up to 1 024.
MAX_FRAMES = 512


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
        self._frames: deque[bytes | memoryview] = deque()
        self._changed = threading.Condition()
        self._is_full = self._is_held = self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Messages that the kernel's buffer has not taken yet."""
        return len(self._frames)

    def send(self, message: object) -> None:
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._changed:
            if not self._closed:
                self._frames.append(len(content).to_bytes(LENGTH_BYTES, "little") + content)
                self._begin()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Messages of the block leave at its end, in one write: each gives up the interpreter's lock, which another
        thread may then keep for a switch interval. Used by one thread at a time."""
        self._is_held = True
        try:
            yield
        finally:
            with self._changed:
                self._is_held = False
                self._begin()

    def close(self) -> None:
        """Send what waits, then end the other process's messages. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _begin(self) -> None:
        """Write, unless the thread has to; called under the lock."""
        if self._frames and not self._is_held and not self._is_full:
            self._write()
            if self._is_full:
                self._changed.notify()

    def _run(self) -> None:
        while self._await_work():
            select.select([], [self._descriptor], [])
            with self._changed:
                self._write()
        os.close(self._descriptor)

    def _await_work(self) -> bool:
        with self._changed:
            while not self._is_full and not self._closed:
                self._changed.wait()
            return bool(self._frames)

    def _write(self) -> None:
        """Write what the kernel takes now."""
        try:
            written = os.writev(self._descriptor, list(islice(self._frames, MAX_FRAMES)))
        except BlockingIOError:
            written = 0
        except BrokenPipeError:
            written = sum(map(len, self._frames))
        while self._frames and written >= len(self._frames[0]):
            written -= len(self._frames.popleft())
        if written:
            self._frames[0] = memoryview(self._frames[0])[written:]
        self._is_full = bool(self._frames)


class Messages:
    """What the other process sends, until it has closed its end or is gone. Iterated once."""

    def __init__(self, descriptor: int, look_ahead: Callable[[Collection[Any]], None] = lambda messages: None) -> None:
        """Takes over `descriptor`. `look_ahead` is called with messages that arrived together, before the first."""
        self._pipe = os.fdopen(descriptor, "rb", buffering=0)
        self._look_ahead = look_ahead
        self._received = bytearray()
        self._waiting: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        with contextlib.closing(self._pipe):
            while chunk := os.read(self._pipe.fileno(), PIPE_BYTES):
                self._received += chunk
                self._unpack()
                if len(self._waiting) > 1:
                    self._look_ahead(self._waiting)
                while self._waiting:
                    yield self._waiting.popleft()

    def more_follow(self) -> bool:
        """Whether more have arrived behind the last one; for any thread."""
        with contextlib.suppress(ValueError):  # closed
            return bool(self._waiting or self._received or select.select([self._pipe], [], [], 0)[0])
        return False

    def _unpack(self) -> None:
        start = 0
        while (body := start + LENGTH_BYTES) <= len(self._received):
            end = body + int.from_bytes(self._received[start:body], "little")
            if end > len(self._received):
                break
            self._waiting.append(pickle.loads(memoryview(self._received)[body:end]))
            start = end
        del self._received[:start]
