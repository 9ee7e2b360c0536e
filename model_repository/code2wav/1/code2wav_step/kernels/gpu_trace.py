"""Writes when the GPU ran each CUDA graph of this process, for `scripts.benchmarks.profile_tick --concurrency`."""

import os
import threading
import time
from collections import deque
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

# A folder; without it nothing is traced. Each process writes a file, named after its package, with a line for each
# graph: start and end in ns of perf_counter_ns, which is one clock for all processes of a machine.
VARIABLE = "QWEN3_TTS_GPU_TRACE"
PERIOD_SECONDS = 0.1
# The time between two events is a 32-bit number of ms; so long after the origin it is exact to 1 µs.
ORIGIN_NS = 10 * 10**9


class Graph(Protocol):
    """torch.cuda.CUDAGraph, once captured."""

    def replay(self) -> None: ...


class TracedGraph:
    def __init__(self, graph: Graph, folder: Path) -> None:
        self._graph, self._folder = graph, folder

    def replay(self) -> None:
        # Opened at a replay, not at the capture: to ask whether an event has passed ends any capture under way.
        spans = spans_in(self._folder)
        begin, end = timed_event(), timed_event()
        begin.record()
        self._graph.replay()
        end.record()
        spans.add(begin, end)


class Spans:
    """Times between pairs of events; a thread writes those that have passed."""

    def __init__(self, path: Path) -> None:
        self._file, self._stream = path.open("w"), torch.cuda.Stream()
        self._waiting: deque[tuple[Origin, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._origin = Origin.now(self._stream)
        threading.Thread(target=self._run, name="gpu trace", daemon=True).start()

    def add(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._waiting.append((self._origin, begin, end))

    def write(self) -> None:
        while self._waiting and self._waiting[0][-1].query():
            origin, *events = self._waiting.popleft()
            print(*map(origin.nanoseconds, events), file=self._file)
        self._file.flush()
        if time.perf_counter_ns() - self._origin.at_ns > ORIGIN_NS:
            self._origin = Origin.now(self._stream)

    def _run(self) -> None:
        while True:
            time.sleep(PERIOD_SECONDS)
            self.write()


class Origin(NamedTuple):
    """An event and when it passed."""

    event: torch.cuda.Event
    at_ns: int

    @classmethod
    def now(cls, stream: torch.cuda.Stream) -> "Origin":
        event = timed_event()
        event.record(stream)
        event.synchronize()
        return cls(event, time.perf_counter_ns())

    def nanoseconds(self, event: torch.cuda.Event) -> int:
        return self.at_ns + round(1e6 * self.event.elapsed_time(event))


def traced(graph: Graph) -> Graph:
    """The graph itself, unless a folder is given."""
    return TracedGraph(graph, Path(folder)) if (folder := os.environ.get(VARIABLE)) else graph


@cache
def spans_in(folder: Path) -> Spans:
    """Spans of this process."""
    return Spans(folder / f"{__name__.partition('.')[0]}-{os.getpid()}")


def timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
