"""Spans of CUDA graphs, with events that need no GPU; tests/gpu/test_gpu_trace.py has real ones."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scripts.lab.gpu_trace import spans as gpu_trace
from scripts.lab.gpu_trace.spans import Spans, Traced


class FakeGpu:
    """Runs nothing until `run`; its clock then has gone on by what each graph takes."""

    def __init__(self) -> None:
        self.now_ms, self.launched = 0.0, []  # type: ignore[var-annotated]

    def run(self) -> None:
        for work in self.launched:
            work()
        self.launched.clear()


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu, self.at_ms = gpu, None

    def record(self, stream: object = None) -> None:
        self._gpu.launched.append(self._pass)

    def synchronize(self) -> None:
        self._gpu.run()

    def query(self) -> bool:
        return self.at_ms is not None

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert self.at_ms is not None
        assert other.at_ms is not None
        return other.at_ms - self.at_ms

    def _pass(self) -> None:
        self.at_ms = self._gpu.now_ms  # type: ignore[assignment]


class FakeGraph:
    def __init__(self, gpu: FakeGpu, ms: float) -> None:
        self._gpu, self._ms = gpu, ms

    def replay(self) -> None:
        self._gpu.launched.append(self._run)

    def _run(self) -> None:
        self._gpu.now_ms += self._ms


class TracedFake(Traced, FakeGraph): ...


def graph_of(gpu: FakeGpu, ms: float) -> TracedFake:
    """A graph that takes so long, once it is uploaded."""
    graph = TracedFake(gpu, ms)
    graph.replay()
    gpu.launched.clear()
    return graph


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGpu]:
    """The clock of the machine is that of the GPU, and no thread writes: the tests do."""
    gpu = FakeGpu()
    monkeypatch.setenv(gpu_trace.VARIABLE, str(tmp_path))
    monkeypatch.setattr(gpu_trace, "timed_event", lambda: FakeEvent(gpu))
    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 7_000_000_000 + round(gpu.now_ms * 1e6))
    monkeypatch.setattr(Spans, "_run", lambda spans: None)
    gpu_trace.spans_of.cache_clear()
    yield gpu
    gpu_trace.spans_of.cache_clear()


def written(folder: Path) -> list[list[int]]:
    [file] = folder.glob(f"other-{os.getpid()}")
    return [[int(number) for number in line.split()] for line in file.read_text().splitlines()]


def test_writes_a_span_for_each_graph_that_has_ended(gpu: FakeGpu, tmp_path: Path) -> None:
    short, long = graph_of(gpu, 1.5), graph_of(gpu, 4.0)
    assert list(tmp_path.iterdir()) == [], "nothing is asked of the GPU while graphs may still be captured"
    short.replay()
    long.replay()
    spans = gpu_trace.spans_of(tmp_path)
    spans.write()
    assert written(tmp_path) == []
    gpu.run()
    gpu.now_ms += 2.0
    short.replay()
    spans.write()
    expected = [[7_000_000_000, 7_001_500_000], [7_001_500_000, 7_005_500_000]]
    assert written(tmp_path) == expected
    gpu.run()
    spans.write()
    assert written(tmp_path) == [*expected, [7_007_500_000, 7_009_000_000]]


def test_a_span_keeps_the_origin_from_before_it(gpu: FakeGpu, tmp_path: Path) -> None:
    graph = graph_of(gpu, 20_000.0)
    graph.replay()
    spans = gpu_trace.spans_of(tmp_path)
    gpu.run()
    graph.replay()
    # Writes the first span, and has another origin from here on.
    spans.write()
    graph.replay()
    gpu.run()
    spans.write()
    starts = [7_000_000_000 + 20_000_000_000 * number for number in range(3)]
    assert written(tmp_path) == [[start, start + 20_000_000_000] for start in starts]


def test_a_thread_writes_until_the_process_ends(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran, stop = threading.Event(), threading.Event()

    def run(spans: Spans) -> None:
        ran.set()
        stop.wait(60)

    monkeypatch.setattr(Spans, "_run", run)
    graph_of(gpu, 1.0).replay()
    assert ran.wait(60)
    assert {thread.daemon for thread in threading.enumerate() if thread.name == "gpu trace"} == {True}
    stop.set()
