"""Measures in a process of its own, since a wrong kernel can end its process or hang it."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

from scripts.benchmarks.products.candidates import Item
from scripts.benchmarks.products.table import Measurement

Measure = Callable[[Item], Measurement]
SECONDS = 60.0
# A new process takes seconds; if no candidate runs, do not start one for each.
MAX_LOST = 8


class Worker:
    def __init__(self, start: Callable[[], Measure], seconds: float = SECONDS) -> None:
        """`start` runs in the process; one that takes more than `seconds` for an item is killed."""
        self._start = start
        self._seconds = seconds
        self._lost = 0
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def measure(self, item: Item) -> Measurement:
        if self._lost == MAX_LOST:
            return Measurement(failure=f"skipped after {MAX_LOST} lost processes")
        try:
            connection = self._connected()
            connection.send(item)
            if connection.poll(self._seconds):
                found: Measurement = connection.recv()
                return found
            failure = "its process hung"
        except (EOFError, OSError):
            failure = "its process died"
        self._lost += 1
        self.close()
        return Measurement(failure=failure)

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None

    def _connected(self) -> Connection:
        if self._connection:
            return self._connection
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self._start), daemon=True)
        self._process.start()
        theirs.close()
        return self._connection


def serve(connection: Connection, start: Callable[[], Measure]) -> None:
    measure = start()
    while True:
        connection.send(measure(connection.recv()))
