"""Load generation: closed loop (constant concurrency), burst, and open loop (Poisson arrivals)."""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from qwen3_tts_client.analysis.playback import NS

# Keeps a refused caller from retrying at line rate.
PAUSE_AFTER_FAILURE_S = 0.1

# Sends the request of an index, due at a perf_counter_ns (None: now), and returns whether it succeeded.
Send = Callable[[int, int | None], Awaitable[bool]]


@dataclass(frozen=True)
class Phase:
    """Warm-up or measurement of one load: `requests` requests, or until `stop_ns`.

    An open loop includes its warm-up as its first `warmups` requests: waiting for them to end would drain the server.
    """

    load: int
    name: str  # "warmup" or "measure"
    mode: str  # one of record.MODES
    value: float  # concurrency, requests at once, or requests per second
    start_ns: int
    stagger_ns: int  # closed loop: stream starts are spread over this time
    requests: int | None
    stop_ns: int | None
    seed: str
    warmups: int = 0


@dataclass(frozen=True)
class Share:
    """One worker process's share of a phase: every `workers`-th stream and request, starting at `worker`."""

    worker: int
    workers: int

    def indices(self, number: int | None) -> Iterator[int]:
        """This worker's indices of 0 .. number - 1, unbounded for None."""
        every = itertools.count() if number is None else range(number)
        return itertools.islice(every, self.worker, None, self.workers)


async def run_phase(phase: Phase, share: Share, send: Send) -> None:
    """Returns once the last stream has ended. Cancelling it cancels every stream."""
    run = run_open if phase.mode == "open" else run_closed
    await run(phase, share, send)


async def run_closed(phase: Phase, share: Share, send: Send) -> None:
    indices = share.indices(phase.requests)
    concurrency = int(phase.value)
    async with asyncio.TaskGroup() as slots:
        for slot in share.indices(concurrency):
            start_ns = phase.start_ns + phase.stagger_ns * slot // concurrency
            slots.create_task(_run_slot(start_ns, phase.stop_ns, indices, send))


async def _run_slot(start_ns: int, stop_ns: int | None, indices: Iterator[int], send: Send) -> None:
    await _sleep_until(start_ns)
    while stop_ns is None or time.perf_counter_ns() < stop_ns:
        index = next(indices, None)
        if index is None:
            return
        if not await send(index, None):
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)


async def run_open(phase: Phase, share: Share, send: Send) -> None:
    arrivals = enumerate(poisson_arrivals_ns(phase))
    async with asyncio.TaskGroup() as streams:
        for index, due_ns in arrivals:
            if index % share.workers == share.worker:
                await _sleep_until(due_ns)
                streams.create_task(_send_due(index, due_ns, send))


async def _send_due(index: int, due_ns: int, send: Send) -> None:
    await send(index, due_ns)


def poisson_arrivals_ns(phase: Phase) -> Iterator[int]:
    """Arrival times with independent exponential gaps of mean 1/value seconds; deterministic in the seed."""
    rng = random.Random(phase.seed)
    due_ns = phase.start_ns
    for _ in itertools.count() if phase.requests is None else range(phase.requests):
        due_ns += round(rng.expovariate(phase.value) * NS)
        if phase.stop_ns is not None and due_ns >= phase.stop_ns:
            return
        yield due_ns


async def _sleep_until(due_ns: int) -> None:
    left_ns = due_ns - time.perf_counter_ns()
    if left_ns > 0:
        await asyncio.sleep(left_ns / NS)
