"""Triton's thread only copies requests; the intake thread processes them in order."""

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from qwen3_tts_engine import metrics
from qwen3_tts_engine.metrics import Recorder
from qwen3_tts_engine.process.host import ThisProcess

WAIT = 10.0


class SlowService:
    """Records accepted texts in order and the threads that accepted them; waits for `gate` before each."""

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.threads: set[str] = set()
        self.entered, self.gate = threading.Event(), threading.Event()

    def accept(self, fields: dict[str, Any], caller: Any, position: Any) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT)
        self.accepted.append(fields["text"])
        self.threads.add(threading.current_thread().name)

    def close(self) -> None:
        self.gate.set()


class Intake:
    def __init__(self, requests: Any, max_requests: int) -> None:
        self.service, self.recorder = SlowService(), Recorder()
        self.host = ThisProcess(self.service, max_requests)  # type: ignore[arg-type]
        self._accept = requests.accept

    def send(self, text: bytes) -> list[str]:
        """Returns the responses so far."""
        tensor = MagicMock(as_numpy=lambda: np.array([text], np.object_))
        tensor.name.return_value = "text"
        sender = MagicMock()
        request = MagicMock(
            inputs=lambda: [tensor], correlation_id=lambda: 0, flags=lambda: 0, get_response_sender=lambda: sender
        )
        self._accept(request, self.host, MagicMock(), self.recorder)
        return [str(call) for call in sender.send.mock_calls]

    def refused(self, outcome: str) -> float:
        return self.recorder.take().counted[metrics.REQUESTS.name, outcome]


@pytest.fixture
def intake(adapter: Callable[..., Any]) -> Iterator[Intake]:
    intake = Intake(adapter("requests", MagicMock()), max_requests=4)
    yield intake
    intake.host.close()


def test_the_intake_thread_accepts_requests_in_order(intake: Intake) -> None:
    intake.send(b"0")
    assert intake.service.entered.wait(WAIT)
    for text in (b"1", b"2", b"3"):
        assert not intake.send(text)
    assert intake.service.accepted == []
    intake.host.close()
    assert intake.service.accepted == ["0", "1", "2", "3"]
    assert intake.service.threads == {"intake"}
    assert intake.refused("unavailable") == 0


def test_refuses_a_request_when_the_queue_is_full(intake: Intake) -> None:
    intake.send(b"0")
    assert intake.service.entered.wait(WAIT)
    answers = [intake.send(text) for text in (b"1", b"2", b"3", b"4", b"5")]
    assert [len(sent) for sent in answers] == [0, 0, 0, 0, 1]
    assert intake.refused("unavailable") == 1


def test_refuses_a_request_that_cannot_be_read(intake: Intake) -> None:
    assert len(intake.send(b"\xff")) == 1
    assert intake.refused("invalid") == 1


def test_refuses_requests_after_its_end(intake: Intake) -> None:
    intake.host.close()
    assert len(intake.send(b"0")) == 1
    assert intake.service.accepted == []
