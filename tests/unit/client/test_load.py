import asyncio
import time
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from qwen3_tts_client.analysis.playback import NS
from qwen3_tts_client.bench.load import PAUSE_AFTER_FAILURE_S, Phase, Share, poisson_arrivals_ns, run_phase

ALONE = Share(0, 1)


def phase(mode: str, value: float, requests: int | None = None, stop_s: float | None = None, seed: str = "0") -> Phase:
    start_ns = time.perf_counter_ns()
    stop_ns = None if stop_s is None else start_ns + round(stop_s * NS)
    return Phase(0, "measure", mode, value, start_ns, stagger_ns=0, requests=requests, stop_ns=stop_ns, seed=seed)


class Server:
    """Records each request; a request takes `seconds`."""

    def __init__(self, seconds: float = 0.01, succeeds: bool = True) -> None:
        self.seconds = seconds
        self.succeeds = succeeds
        self.sent: list[tuple[int, int | None, int]] = []  # index, due, sent
        self.max_concurrent = self.concurrent = self.ended = 0

    async def send(self, index: int, due_ns: int | None) -> bool:
        self.sent.append((index, due_ns, time.perf_counter_ns()))
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.concurrent -= 1
        self.ended += 1
        return self.succeeds


def test_poisson_arrivals_are_reproducible_by_seed() -> None:
    one = phase("open", 10, seed="a")
    assert list(islice(poisson_arrivals_ns(one), 50)) == list(islice(poisson_arrivals_ns(one), 50))
    assert list(islice(poisson_arrivals_ns(replace(one, seed="b")), 50)) != list(islice(poisson_arrivals_ns(one), 50))


def test_poisson_gaps_are_exponential_with_the_requested_mean() -> None:
    gaps_s = np.diff(list(islice(poisson_arrivals_ns(phase("open", 20)), 20_000))) / NS
    assert gaps_s.mean() == pytest.approx(1 / 20, rel=0.03)
    assert gaps_s.std() == pytest.approx(1 / 20, rel=0.05)
    assert (gaps_s > 1 / 20).mean() == pytest.approx(np.exp(-1), abs=0.02)


def test_arrivals_stop_at_the_window_end_or_the_request_count() -> None:
    window = phase("open", 100, stop_s=1)
    assert window.stop_ns is not None
    assert max(poisson_arrivals_ns(window)) < window.stop_ns
    assert len(list(poisson_arrivals_ns(phase("open", 100, requests=7)))) == 7


@pytest.mark.parametrize(("mode", "value"), [("closed", 5), ("open", 500)])
def test_workers_split_a_load_without_gaps_or_duplicates(mode: str, value: float) -> None:
    whole = phase(mode, value, requests=23)
    servers = [Server() for _ in range(3)]
    for number, server in enumerate(servers):
        asyncio.run(run_phase(whole, Share(number, 3), server.send))
    sent = [(number, index) for number, server in enumerate(servers) for index, _, _ in server.sent]
    assert sorted(index for _, index in sent) == list(range(23))
    assert all(index % 3 == number for number, index in sent)


def test_closed_loop_keeps_the_requested_concurrency() -> None:
    server = Server()
    asyncio.run(run_phase(phase("closed", 4, requests=20), ALONE, server.send))
    assert server.max_concurrent == 4
    assert len(server.sent) == server.ended == 20


@pytest.mark.timing
def test_closed_loop_staggers_its_first_requests() -> None:
    server = Server(seconds=1)
    staggered = replace(phase("closed", 4, requests=4), stagger_ns=NS // 5)
    asyncio.run(run_phase(staggered, ALONE, server.send))
    late_s = [(sent - staggered.start_ns) / NS - 0.05 * slot for slot, (_, _, sent) in enumerate(server.sent)]
    assert min(late_s) >= 0
    assert np.median(late_s) < 0.04


@pytest.mark.timing
def test_closed_loop_stops_sending_at_the_window_end_and_drains_its_streams() -> None:
    server = Server(seconds=0.3)
    window = phase("closed", 2, stop_s=0.5)
    asyncio.run(run_phase(window, ALONE, server.send))
    assert window.stop_ns is not None
    assert max(sent for _, _, sent in server.sent) < window.stop_ns
    assert server.ended == len(server.sent) == 4


@pytest.mark.timing
def test_open_loop_sends_on_schedule_regardless_of_pending_requests() -> None:
    server = Server(seconds=0.5)
    asyncio.run(run_phase(phase("open", 100, requests=20), ALONE, server.send))
    assert server.max_concurrent > 10
    late_ns = [sent - due for _, due, sent in server.sent if due is not None]
    assert len(late_ns) == 20
    assert min(late_ns) >= 0
    assert np.median(late_ns) < NS // 50


def test_closed_loop_pauses_after_a_failed_request() -> None:
    server = Server(seconds=0, succeeds=False)
    asyncio.run(run_phase(phase("closed", 1, stop_s=3.5 * PAUSE_AFTER_FAILURE_S), ALONE, server.send))
    assert 2 <= len(server.sent) <= 4


def test_cancelling_a_phase_cancels_its_streams() -> None:
    async def cancelled() -> Server:
        server = Server(seconds=60)
        task = asyncio.create_task(run_phase(phase("closed", 3, requests=9), ALONE, server.send))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        return server

    server = asyncio.run(cancelled())
    assert (len(server.sent), server.concurrent, server.ended) == (3, 0, 0)
