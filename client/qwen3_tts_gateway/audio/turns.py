"""Turns at a shared resource, in the order in which results are needed."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Grants at most `count` turns at a time. Belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def turn(self, due: float) -> AsyncIterator[None]:
        """Waits while others are due before `due`, or at the same time and came first."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(due)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, due: float) -> None:
        granted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (due, next(self._numbers), granted))
        try:
            await granted
        except asyncio.CancelledError:
            # Cancelled in the moment in which the turn came.
            if not granted.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            _, _, granted = heapq.heappop(self._waiting)
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1
