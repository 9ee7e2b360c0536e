"""The thread that accepts requests only reads them: what they ask for is done in order by another one."""

import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from qwen3_tts_engine.lifecycle.gate import Gate
from qwen3_tts_engine.request import RequestError, Unavailable
from qwen3_tts_engine.worker import Worker

WAIT = 10.0


class SlowDesk:
    """Keeps the texts that it took, in order, and on which thread; waits for `gate` before each."""

    def __init__(self) -> None:
        self.engine = MagicMock()
        self.engine.refuse = self._refuse
        self.refused: list[RequestError] = []
        self.taken: list[str] = []
        self.threads: set[str] = set()
        self.fail: RequestError | None = None
        self.entered, self.gate = threading.Event(), threading.Event()

    def accept(self, fields: dict[str, Any], sink: Any, piece: Any) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT)
        if self.fail:
            raise self.fail
        self.taken.append(fields["text"])
        self.threads.add(threading.current_thread().name)

    def _refuse(self, sink: Any, error: RequestError) -> None:
        self.refused.append(error)


class Intake:
    def __init__(self, triton_io: Any, max_jobs: int) -> None:
        self.desk, self.worker, self.gate = SlowDesk(), Worker("intake", max_jobs), Gate(max_jobs)
        self._accept = triton_io.accept

    def send(self, text: str) -> None:
        tensor = MagicMock(as_numpy=lambda: np.array([text.encode()], np.object_))
        tensor.name.return_value = "text"
        request = MagicMock(inputs=lambda: [tensor], correlation_id=lambda: 0, flags=lambda: 0)
        self._accept(request, self.gate, self.worker, self.desk, MagicMock())


@pytest.fixture
def intake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Intake]:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    monkeypatch.delitem(sys.modules, "triton_io", raising=False)
    intake = Intake(importlib.import_module("triton_io"), max_jobs=4)
    intake.gate.open()
    yield intake
    intake.desk.gate.set()
    intake.worker.close()
    sys.modules.pop("triton_io")


def test_requests_are_taken_in_order_by_a_thread_of_their_own(intake: Intake) -> None:
    intake.send("0")
    assert intake.desk.entered.wait(WAIT)
    for text in "123":
        intake.send(text)
    assert intake.desk.taken == []
    intake.desk.gate.set()
    intake.worker.finish()
    assert intake.desk.taken == ["0", "1", "2", "3"]
    assert intake.desk.threads == {"intake"}
    assert intake.desk.refused == []


def test_as_many_wait_as_may(intake: Intake) -> None:
    intake.send("0")
    assert intake.desk.entered.wait(WAIT)
    for text in "12345":
        intake.send(text)
    [refused] = intake.desk.refused
    assert isinstance(refused, Unavailable)
    assert str(refused) == "busy: 4 requests wait (intake)"


def test_whoever_waits_at_the_end_is_answered(intake: Intake) -> None:
    intake.send("0")
    assert intake.desk.entered.wait(WAIT)
    intake.send("1")
    closed = Unavailable("the server is shutting down")
    intake.desk.fail = closed
    intake.desk.gate.set()
    intake.worker.finish()
    assert intake.desk.refused == [closed, closed]
    intake.send("2")
    assert [str(error) for error in intake.desk.refused] == ["the server is shutting down"] * 3
