"""Spans of CUDA graphs on the machine's clock."""

import time
from pathlib import Path

import pytest
import torch

from scripts.lab.gpu_share import read
from scripts.lab.gpu_trace.spans import VARIABLE, TracedGraph, spans_of

CYCLES, REPLAYS = 5_000_000, 4


def test_spans_are_of_the_machines_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    graph = TracedGraph()
    with torch.cuda.graph(graph):
        torch.cuda._sleep(CYCLES)
    graph.replay()
    host = []
    for _ in range(REPLAYS):
        start = time.perf_counter_ns()
        graph.replay()
        torch.cuda.synchronize()
        host.append((start, time.perf_counter_ns()))
    traced = spans_of(tmp_path)
    # A thread that asks the GPU would end the captures of later tests.
    traced.close()
    traced.write()
    spans = read(tmp_path, "other").tolist()
    assert len(spans) == REPLAYS
    for (start, end), (before, after) in zip(spans, host, strict=True):
        # 5 million cycles take 2.5 ms or more; 0.2 ms for the host's wait that gives the origin.
        assert before - 200_000 < start < end - 2_000_000 < end < after + 200_000
