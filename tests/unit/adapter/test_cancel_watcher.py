"""Triton is asked about live streams alone, and not often."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qwen3_tts_engine.lifecycle.gate import Gate
from qwen3_tts_engine.request import Cancelled, InvalidRequest, RequestError

WAIT = 10.0


ERROR = SimpleNamespace(INVALID_ARG=1, CANCELLED=2)
UTILITIES = SimpleNamespace(
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    TritonError=type("TritonError", (), {"__init__": lambda self, *given: None, **vars(ERROR)}),
    InferenceResponse=lambda *outputs, error=None: error,
    Tensor=lambda name, values: values,
)


class Sender:
    """A response sender that counts how often it is asked; asking behind the end is what crashes Triton."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.cancelled = self.ended = False

    def is_cancelled(self) -> bool:
        assert not self.ended
        self.asked.append(time.monotonic())
        return self.cancelled

    def send(self, *response: object, flags: int = 0) -> None:
        self.ended |= bool(flags)


class Watched:
    def __init__(self, requests: Any, responses: Any) -> None:
        self._accept = requests.accept
        self.responses = responses
        self.gone: list[str] = []
        self.turned = threading.Semaphore(0)
        self.watcher = responses.CancelWatcher(self.gone.append, self.turned.release)

    def accept(self, sender: Sender, take: Callable[[Any], None]) -> None:
        request = SimpleNamespace(
            get_response_sender=lambda: sender, inputs=list, correlation_id=lambda: 0, flags=lambda: 0
        )

        def refuse(sink: Any, error: RequestError) -> None:
            sink.finish(error)

        dispatcher = SimpleNamespace(accept=lambda fields, sink, position: take(sink), refuse=refuse)
        gate, intake = Gate(9), SimpleNamespace(submit=lambda job: job())
        gate.open()
        self._accept(request, gate, intake, dispatcher, self.watcher)

    def turn(self, times: int) -> None:
        """Let the watcher go round so often."""
        for _ in range(times):
            assert self.turned.acquire(timeout=WAIT)


@pytest.fixture
def watched(adapter: Callable[..., Any]) -> Iterator[Watched]:
    watched = Watched(adapter("requests", UTILITIES), adapter("responses", UTILITIES))
    yield watched
    watched.watcher.close()


def test_a_request_that_is_refused_at_once_is_never_asked_about(watched: Watched) -> None:
    refused, live = Sender(), Sender()

    def take(sink: Any) -> None:
        raise InvalidRequest("speaker", "nobody", "one of ryan")

    watched.accept(live, lambda sink: None)
    watched.accept(refused, take)
    watched.turn(20)
    assert refused.ended
    assert not refused.asked
    assert live.asked


def test_a_stream_is_asked_about_once_an_interval_and_not_behind_its_end(watched: Watched) -> None:
    sender, sinks = Sender(), []
    accepted = time.monotonic()
    watched.accept(sender, sinks.append)
    watched.turn(50)
    sinks[0].finish(None)
    assert len(sender.asked) > 2
    # On average: on a busy machine one may come late, and the next one on time.
    assert (sender.asked[-1] - accepted) / len(sender.asked) > watched.responses.CANCEL_INTERVAL * 0.9


def test_a_client_that_goes_is_noticed_and_triton_told_when_it_has_settled(watched: Watched) -> None:
    sender, sinks = Sender(), []
    watched.accept(sender, sinks.append)
    sender.cancelled = True
    watched.turn(50)
    assert sinks[0].key in watched.gone
    cancelled = time.monotonic()
    sinks[0].finish(Cancelled("cancelled by the client"))
    while not sender.ended:
        watched.turn(1)
    assert time.monotonic() - cancelled >= watched.responses.CANCEL_SETTLE


def test_a_stream_that_ends_as_its_client_goes_settles_too(watched: Watched) -> None:
    sender, sinks = Sender(), []
    watched.accept(sender, sinks.append)
    sinks[0].send(b"audio")
    sender.cancelled = True
    sinks[0].finish(None)
    assert not sender.ended
    watched.watcher.close()
    assert sender.ended


def test_closing_tells_triton_of_every_end(watched: Watched) -> None:
    sender, sinks = Sender(), []
    watched.accept(sender, sinks.append)
    sinks[0].finish(Cancelled("cancelled by the client"))
    watched.watcher.close()
    assert sender.ended
