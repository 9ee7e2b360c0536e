"""When the GPU ran each CUDA graph of a process."""

import os
import threading
import time
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

# A folder. Each process writes a file, named after its model, with a line for each graph: start and end in ns of
# perf_counter_ns, which is one clock for all processes of a machine.
VARIABLE = "GPU_TRACE"
# By a folder in the command of the process.
MODELS = ("code2wav", "qwen3_tts")
PERIOD_SECONDS = 0.1
# The time between two events is a 32-bit number of ms; so long after the origin it is exact to 1 µs.
ORIGIN_NS = 10 * 10**9


class Traced:
    """Traces the replays of the graph class that follows in the order of bases."""

    # The first replay uploads the graph, and others may still be captured: to ask whether an event has passed ends any
    # capture under way.
    _is_uploaded = False

    def replay(self) -> None:
        graph: Any = super()
        if not self._is_uploaded:
            self._is_uploaded = True
            graph.replay()
            return
        spans = spans_of(Path(os.environ[VARIABLE]))
        begin, end = timed_event(), timed_event()
        begin.record()
        graph.replay()
        end.record()
        spans.add(begin, end)


class TracedGraph(Traced, torch.cuda.CUDAGraph):
    """Stands in for torch.cuda.CUDAGraph."""


class Spans:
    """Times between pairs of events; a thread writes those that have passed."""

    def __init__(self, path: Path) -> None:
        self._file, self._stream = path.open("w"), torch.cuda.Stream()
        self._waiting: deque[tuple[Origin, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._origin, self._ended = Origin.now(self._stream), threading.Event()
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

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_SECONDS):
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
        milliseconds: float = self.event.elapsed_time(event)
        return self.at_ns + round(1e6 * milliseconds)


@cache
def spans_of(folder: Path) -> Spans:
    """Spans of this process."""
    command = Path("/proc/self/cmdline").read_text()
    model = next((name for name in MODELS if f"/{name}/" in command), "other")
    return Spans(folder / f"{model}-{os.getpid()}")


def timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
