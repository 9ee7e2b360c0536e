"""Spans of CUDA graphs on the machine's clock."""

import time
from pathlib import Path

import pytest
import torch

from qwen3_tts_engine.talker.kernels import gpu_trace
from qwen3_tts_engine.talker.kernels.gpu_trace import traced
from scripts.benchmarks.gpu_share import read

CYCLES, REPLAYS = 5_000_000, 4


def test_spans_are_of_the_machines_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(gpu_trace.VARIABLE, str(tmp_path))
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        torch.cuda._sleep(CYCLES)
    graph = traced(captured)
    host = []
    for _ in range(REPLAYS):
        start = time.perf_counter_ns()
        graph.replay()
        torch.cuda.synchronize()
        host.append((start, time.perf_counter_ns()))
    gpu_trace.spans_in(tmp_path).write()
    spans = read(tmp_path, "qwen3_tts_engine").tolist()
    assert len(spans) == REPLAYS
    for (start, end), (before, after) in zip(spans, host, strict=True):
        # 5 million cycles take 2.5 ms or more; 0.2 ms for the host's wait that gives the origin.
        assert before - 200_000 < start < end - 2_000_000 < end < after + 200_000
