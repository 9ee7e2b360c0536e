"""The order of turns, with tasks that wait for events instead of encoding."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from qwen3_tts_gateway.audio.pipeline import PIECE_SAMPLES, Encoders, Pipeline
from qwen3_tts_gateway.audio.turns import Turns


class Visitors:
    """Tasks that take a turn; each ends when it is let go."""

    def __init__(self, turns: Turns) -> None:
        self.order: list[str] = []
        self._turns, self._ends = turns, dict[str, asyncio.Event]()
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def arrive(self, name: str, due: float) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._visit(name, due))
        await settle()

    async def let_go(self, name: str) -> None:
        self._ends[name].set()
        await settle()

    async def _visit(self, name: str, due: float) -> None:
        async with self._turns.turn(due):
            self.order.append(name)
            await self._ends[name].wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_earliest_due_is_next_and_equals_keep_their_order() -> None:
    async def run() -> None:
        visitors = Visitors(Turns(1))
        for name, due in (("first", 9.0), ("late", 5.0), ("early", 1.0), ("also early", 1.0), ("middle", 3.0)):
            await visitors.arrive(name, due)
        assert visitors.order == ["first"]
        for name in ("first", "early", "also early", "middle", "late"):
            await visitors.let_go(name)
        assert visitors.order == ["first", "early", "also early", "middle", "late"]

    asyncio.run(run())


def test_as_many_turns_as_there_are_at_once() -> None:
    async def run() -> None:
        visitors = Visitors(Turns(2))
        for name in ("a", "b", "c"):
            await visitors.arrive(name, 0.0)
        assert visitors.order == ["a", "b"]
        await visitors.let_go("a")
        assert visitors.order == ["a", "b", "c"]

    asyncio.run(run())


def test_cancelled_while_it_waits_it_takes_no_turn() -> None:
    async def run() -> None:
        visitors = Visitors(Turns(1))
        for name in ("has", "waits", "last"):
            await visitors.arrive(name, 0.0)
        visitors.tasks["waits"].cancel()
        await visitors.let_go("has")
        assert visitors.order == ["has", "last"]

    asyncio.run(run())


def test_cancelled_when_the_turn_comes_it_passes_it_on() -> None:
    async def run() -> None:
        turns = Turns(1)
        visitors = Visitors(turns)
        async with turns.turn(0.0):
            await visitors.arrive("gets", 0.0)
            await visitors.arrive("next", 0.0)
        # It has the turn, but has not run since.
        visitors.tasks["gets"].cancel()
        await settle()
        assert visitors.order == ["next"]

    asyncio.run(run())


def test_a_stream_with_buffered_audio_is_due_later_than_one_without() -> None:
    async def run() -> None:
        encoders = Encoders(1)
        waiting, fresh = (Pipeline("mp3", None, None, encoders) for _ in range(2))
        async for _ in waiting.encode(np.zeros(2 * PIECE_SAMPLES, np.int16)):
            pass
        async for _ in fresh.encode(np.zeros(PIECE_SAMPLES, np.int16)):
            pass
        assert waiting._due > fresh._due
        encoders.executor.shutdown()

    asyncio.run(run())


def test_threads_are_those_of_the_setting() -> None:
    encoders = Encoders(3)
    assert isinstance(encoders.executor, ThreadPoolExecutor)
    assert (encoders.executor._max_workers, encoders.turns._free) == (3, 3)
