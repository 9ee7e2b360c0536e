"""Times of kernels in CUDA graphs, where the host does not count."""

import statistics
from collections.abc import Callable

import torch

REPLAYS, REPEATS, WARM_UP = 6, 5, 3


def graph_us(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Microseconds of a graph of what `run` launches: the median of `repeats` means."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(WARM_UP):
        graph.replay()
    return statistics.median(_replay_us(graph) for _ in range(repeats))


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000 / REPLAYS
