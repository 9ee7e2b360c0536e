import asyncio
import time

import pytest

from qwen3_tts_client.analysis.results import CPU_LIMIT
from qwen3_tts_client.bench.worker import LoopMonitor


@pytest.mark.parametrize(("seconds", "is_slow"), [(1e-4, False), (1.0, True)])
def test_a_worker_that_ends_at_once_is_not_slow(seconds: float, is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had no streams: the CPU was its own all the time."""

    async def phase() -> float:
        now = 5.0
        monkeypatch.setattr(time, "perf_counter", lambda: now)
        monkeypatch.setattr(time, "process_time", lambda: now)
        with LoopMonitor() as monitor:
            now += seconds
        return monitor.record(load=0, worker=1).cpu_share

    assert (asyncio.run(phase()) > CPU_LIMIT) == is_slow
