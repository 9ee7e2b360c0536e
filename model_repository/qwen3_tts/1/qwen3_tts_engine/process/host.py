"""Where the engine runs, as the adapter sees it; and the simple case, this process."""

from functools import partial
from typing import Any, Protocol

from qwen3_tts_engine.frontend.dispatcher import Caller
from qwen3_tts_engine.frontend.sequences import SequencePosition
from qwen3_tts_engine.metrics import Readings
from qwen3_tts_engine.service import Service
from qwen3_tts_engine.threads import Worker


class Host(Protocol):
    @property
    def is_open(self) -> bool:
        """Whether requests are no longer held."""

    @property
    def is_alive(self) -> bool: ...

    def accept(self, fields: dict[str, Any], caller: Caller, position: SequencePosition | None) -> None:
        """Queue a request, in order; from now on its caller is called. Raises Unavailable when the queue is full."""

    def cancel(self, key: str) -> None:
        """The client of a request has gone; no effect on one that ended."""

    def readings(self) -> Readings:
        """Those since the last call."""

    def close(self) -> None:
        """End every request with UNAVAILABLE and stop."""


class ThisProcess:
    """Host of an engine whose codec is called through Triton, which only this process can do."""

    def __init__(self, service: Service, max_requests: int) -> None:
        """Up to `max_requests` wait for the thread that builds their prompts."""
        self._service = service
        self._intake = Worker("intake", max_requests)

    @property
    def is_open(self) -> bool:
        return self._service.gate.is_open

    @property
    def is_alive(self) -> bool:
        return self._service.engine.is_alive

    def accept(self, fields: dict[str, Any], caller: Caller, position: SequencePosition | None) -> None:
        self._intake.submit(partial(self._service.accept, fields, caller, position))

    def cancel(self, key: str) -> None:
        self._service.engine.cancel(key)

    def readings(self) -> Readings:
        return self._service.engine.recorder.take()

    def close(self) -> None:
        self._service.close()
        # The closed engine refuses the remaining jobs.
        self._intake.finish()
