"""Triton's thread only copies requests; the intake thread processes them in order."""

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from qwen3_tts_engine.lifecycle.gate import Gate
from qwen3_tts_engine.request import RequestError, Unavailable
from qwen3_tts_engine.threads import Worker

WAIT = 10.0


class SlowDispatcher:
    """Records accepted texts in order and the threads that accepted them; waits for `gate` before each."""

    def __init__(self) -> None:
        self.refused: list[RequestError] = []
        self.accepted: list[str] = []
        self.threads: set[str] = set()
        self.fail: RequestError | None = None
        self.entered, self.gate = threading.Event(), threading.Event()

    def accept(self, fields: dict[str, Any], sink: Any, piece: Any) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT)
        if self.fail:
            raise self.fail
        self.accepted.append(fields["text"])
        self.threads.add(threading.current_thread().name)

    def refuse(self, sink: Any, error: RequestError) -> None:
        self.refused.append(error)


class Intake:
    def __init__(self, requests: Any, max_jobs: int) -> None:
        self.dispatcher, self.worker, self.gate = SlowDispatcher(), Worker("intake", max_jobs), Gate(max_jobs)
        self._accept = requests.accept

    def send(self, text: str) -> None:
        tensor = MagicMock(as_numpy=lambda: np.array([text.encode()], np.object_))
        tensor.name.return_value = "text"
        request = MagicMock(inputs=lambda: [tensor], correlation_id=lambda: 0, flags=lambda: 0)
        self._accept(request, self.gate, self.worker, self.dispatcher, MagicMock())


@pytest.fixture
def intake(adapter: Callable[..., Any]) -> Iterator[Intake]:
    intake = Intake(adapter("requests"), max_jobs=4)
    intake.gate.open()
    yield intake
    intake.dispatcher.gate.set()
    intake.worker.close()


def test_the_intake_thread_accepts_requests_in_order(intake: Intake) -> None:
    intake.send("0")
    assert intake.dispatcher.entered.wait(WAIT)
    for text in "123":
        intake.send(text)
    assert intake.dispatcher.accepted == []
    intake.dispatcher.gate.set()
    intake.worker.finish()
    assert intake.dispatcher.accepted == ["0", "1", "2", "3"]
    assert intake.dispatcher.threads == {"intake"}
    assert intake.dispatcher.refused == []


def test_refuses_a_request_when_the_queue_is_full(intake: Intake) -> None:
    intake.send("0")
    assert intake.dispatcher.entered.wait(WAIT)
    for text in "12345":
        intake.send(text)
    [refused] = intake.dispatcher.refused
    assert isinstance(refused, Unavailable)
    assert str(refused) == "busy: 4 requests wait (intake)"


def test_answers_queued_and_later_requests_at_shutdown(intake: Intake) -> None:
    intake.send("0")
    assert intake.dispatcher.entered.wait(WAIT)
    intake.send("1")
    closed = Unavailable("the server is shutting down")
    intake.dispatcher.fail = closed
    intake.dispatcher.gate.set()
    intake.worker.finish()
    assert intake.dispatcher.refused == [closed, closed]
    intake.send("2")
    assert [str(error) for error in intake.dispatcher.refused] == ["the server is shutting down"] * 3
