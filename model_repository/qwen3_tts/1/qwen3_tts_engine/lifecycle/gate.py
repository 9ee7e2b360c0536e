"""Holds requests until the server is ready."""

import threading
from collections.abc import Callable

from qwen3_tts_engine.request import Unavailable

Job = Callable[[], None]


class Gate:
    """Holds up to `capacity` jobs until it opens, then runs them in order of arrival."""

    def __init__(self, capacity: int, on_open: Job = lambda: None) -> None:
        """`on_open` is called once."""
        self._capacity, self._on_open = capacity, on_open
        self._lock = threading.Lock()
        self._held: list[Job] | None = []

    @property
    def is_open(self) -> bool:
        return self._held is None

    def enter(self, job: Job) -> None:
        """Run a job, now or when the gate opens; raises Unavailable when the gate is full."""
        with self._lock:
            if self._held is not None:
                if len(self._held) >= self._capacity:
                    raise Unavailable("the server is starting, and its queue is full")
                self._held.append(job)
                return
        job()

    def open(self) -> None:
        """Run the held jobs, and later ones immediately; safe to call twice."""
        with self._lock:
            if self._held is None:
                return
            held, self._held = self._held, None
            self._on_open()
            for job in held:
                job()
