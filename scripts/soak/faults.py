"""What goes wrong while the callers of a soak call."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle

from scripts.soak.server import Server, Setting
from scripts.soak.utterances import BASE, CUSTOM

POLL_SECONDS = 0.05
# Requests that a fault met end within this time.
SETTLE_SECONDS = 2.0
CODE2WAV = "code2wav"


@dataclass
class Fault:
    """One that happened, in monotonic seconds; requests of that time may fail."""

    name: str
    began: float
    ended: float = float("inf")

    def meets(self, began: float, ended: float) -> bool:
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
    """From each death until every model spoke again."""

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
        yield "codec error", lambda: self._ask_for("codec_error")
        yield "out of memory", lambda: self._ask_for("out_of_memory")
        yield "talker killed", lambda: self._restart(CUSTOM, signal.SIGKILL)
        yield "codec killed", lambda: self._restart(CODE2WAV, signal.SIGKILL)
        yield "clones' talker killed", lambda: self._restart(BASE, signal.SIGKILL)
        yield "codec without an answer", lambda: self._restart(CODE2WAV, signal.SIGSTOP)

    def _ask_for(self, fault: str) -> None:
        """Of the next call of any talker."""
        path = self.setting.faults / fault
        path.touch()
        while path.exists():
            time.sleep(POLL_SECONDS)

    def _restart(self, model: str, number: signal.Signals) -> None:
        """Signal a model's process, and wait until the server has died of it and serves again."""
        triton, stub = self.server.triton, self.server.stub(model)
        stub.send_signal(number)
        began = time.monotonic()
        triton.wait()
        if stub.is_running():  # stopped, it could not end
            stub.kill()
        self.server.wait_ready()
        while not self.is_serving():
            time.sleep(POLL_SECONDS)
        self.restart_seconds.append(time.monotonic() - began)
