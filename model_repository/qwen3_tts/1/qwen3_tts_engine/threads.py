"""Worker threads with a bounded queue, and threads that run loops."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from qwen3_tts_engine.request import Unavailable

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
# Switch interval of an engine's interpreter: a thread may wait so long for the interpreter's lock each time it let go
# of it. The default, 5 ms, is as long as a tick; with 0.5 ms bursts and codec calls took a tenth longer (one H100).
SWITCH_SECONDS = 0.0001


class Worker:
    """A thread that runs jobs in order."""

    def __init__(self, name: str, max_jobs: int, on_start: Callable[[], None] = lambda: None) -> None:
        """`on_start` runs first on the thread."""
        self._max_jobs = max_jobs
        self._on_start = on_start
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; raises Unavailable when the queue is full or closed."""
        with self._changed:
            if self._closed:
                raise Unavailable("the server is shutting down")
            if len(self._jobs) >= self._max_jobs:
                raise Unavailable(f"busy: {len(self._jobs)} requests wait ({self._thread.name})")
            self._jobs.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Stop after the current job and discard queued ones. Safe to call twice."""
        with self._changed:
            self._jobs.clear()
        self.finish()

    def finish(self) -> None:
        """Run the queued jobs, then stop. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        self._on_start()
        while job := self._next():
            try:
                job()
            except Exception:
                log.exception("a job of %s failed", threading.current_thread().name)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            return self._jobs.popleft() if self._jobs else None


class Ticker:
    """A thread that runs a job every `seconds`."""

    def __init__(self, name: str, seconds: float, job: Callable[[], None]) -> None:
        self._seconds, self._job = seconds, job
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            self._job()


class Precedence:
    """Holds other threads back while one thread works.

    A launch makes some fifty calls that give up the interpreter's lock, and waits up to a switch interval for it after
    each while another thread computes: beside 256 prompts two launches took 34 and 29 ms instead of 0.5 (one H100).
    """

    # A host that never rests does not hold others back for longer.
    MAX_SECONDS = 0.005

    def __init__(self, applies: bool) -> None:
        """Work that seldom rests, as ticks on a CPU, must not hold others back: `applies` is then False."""
        self._applies, self._is_working = applies, False
        self._changed = threading.Condition()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """The thread waits within the block, and works after it."""
        with self._changed:
            self._is_working = False
            self._changed.notify_all()
        yield
        self._is_working = self._applies

    def rest(self, seconds: float) -> None:
        if seconds > 0:
            with self.resting():
                time.sleep(seconds)

    def wait(self) -> None:
        """Called by the other threads before each piece of work."""
        with self._changed:
            if self._is_working:
                self._changed.wait(self.MAX_SECONDS)


class LoopThreads:
    """Threads that each run one loop; an exception in any of them goes to `on_error`."""

    def __init__(
        self,
        loops: dict[str, Callable[[], None]],
        on_start: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """`loops` by thread name; `on_start` runs first on each thread."""
        self._on_start = on_start
        self._on_error = on_error
        self._threads = {
            name: threading.Thread(target=self._run, args=(loop,), name=name, daemon=True)
            for name, loop in loops.items()
        }

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def join(self, names: Iterable[str], timeout: float) -> None:
        """Wait for loops to end, for each at most `timeout`; not before `start`, and not on a thread for itself."""
        for name in names:
            thread = self._threads[name]
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(timeout)

    def _run(self, loop: Callable[[], None]) -> None:
        try:
            self._on_start()
            loop()
        except BaseException as error:
            log.exception("the %s thread died", threading.current_thread().name)
            self._on_error(error)
