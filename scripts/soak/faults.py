"""Fault injection for a soak test."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle

import psutil

from scripts.soak.server import Server, Setting
from scripts.soak.utterances import BASE, CUSTOM

POLL_SECONDS = 0.05
# Requests that overlap a fault end within this time.
SETTLE_SECONDS = 2.0
CODE2WAV = "code2wav"


@dataclass
class Fault:
    """An injected fault, in monotonic seconds; requests that overlap it may fail."""

    name: str
    began: float
    ended: float = float("inf")

    def overlaps(self, began: float, ended: float) -> bool:
        return began <= self.ended and self.began <= ended


@dataclass
class Faults:
    """Injects one fault after the other, `interval` seconds apart, until `stop` is set."""

    setting: Setting
    server: Server
    interval: float
    is_serving: Callable[[], bool]
    """Whether a request to each model is served."""
    happened: list[Fault] = field(default_factory=list)
    restart_seconds: list[float] = field(default_factory=list)
    """Time from each death until every model serves again."""

    def run(self, stop: threading.Event) -> None:
        for name, inject in cycle(self._kinds()):
            if stop.wait(self.interval):
                return
            fault = Fault(name, time.monotonic())
            self.happened.append(fault)
            inject()
            time.sleep(SETTLE_SECONDS)
            fault.ended = time.monotonic()

    def _kinds(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "codec error", lambda: self._request("codec_error")
        yield "out of memory", lambda: self._request("out_of_memory")
        yield "talker killed", lambda: self._restart(self.server.stub(CUSTOM), signal.SIGKILL)
        yield "codec killed", lambda: self._restart(self.server.stub(CODE2WAV), signal.SIGKILL)
        yield "clones' engine killed", lambda: self._restart(self.server.engine(BASE), signal.SIGKILL)
        yield "codec without an answer", lambda: self._restart(self.server.stub(CODE2WAV), signal.SIGSTOP)

    def _request(self, fault: str) -> None:
        """Returns once a talker's next call has taken the fault."""
        path = self.setting.faults / fault
        path.touch()
        while path.exists():
            time.sleep(POLL_SECONDS)

    def _restart(self, process: psutil.Process, number: signal.Signals) -> None:
        """Signals a process of the server; waits until the server has died and serves again."""
        triton = self.server.triton
        process.send_signal(number)
        began = time.monotonic()
        triton.wait()
        if process.is_running():  # a stopped process cannot exit
            process.kill()
        self.server.wait_ready()
        while not self.is_serving():
            time.sleep(POLL_SECONDS)
        self.restart_seconds.append(time.monotonic() - began)
