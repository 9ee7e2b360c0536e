"""Requests on their way to the engine's process, and those that are refused before."""

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from qwen3_tts_engine import metrics
from qwen3_tts_engine.metrics import Recorder
from qwen3_tts_engine.request import InvalidRequest, SequencePosition, Unavailable


class Intake:
    """The adapter before an engine that takes `room` requests."""

    def __init__(self, requests: Any, room: int) -> None:
        self.accepted: list[str] = []
        self.recorder = Recorder()
        self._room, self._accept_request = room, requests.accept

    def accept(self, fields: dict[str, Any], caller: Any, position: Any) -> None:
        if len(self.accepted) == self._room:
            raise Unavailable("busy")
        self.accepted.append(fields["text"])

    def send(self, text: bytes) -> list[str]:
        """Returns the responses."""
        tensor = MagicMock(as_numpy=lambda: np.array([text], np.object_))
        tensor.name.return_value = "text"
        sender = MagicMock()
        request = MagicMock(
            inputs=lambda: [tensor], correlation_id=lambda: 0, flags=lambda: 0, get_response_sender=lambda: sender
        )
        self._accept_request(request, self, MagicMock(), self.recorder)
        return [str(call) for call in sender.send.mock_calls]

    def refused(self, outcome: str) -> float:
        return self.recorder.take().counted[metrics.REQUESTS.name, outcome]


@pytest.fixture
def intake(adapter: Callable[..., Any]) -> Intake:
    return Intake(adapter("requests", MagicMock()), room=3)


def test_requests_are_handed_over_in_order(intake: Intake) -> None:
    assert [intake.send(text) for text in (b"0", b"1", b"2")] == [[], [], []]
    assert intake.accepted == ["0", "1", "2"]
    assert intake.refused("unavailable") == 0


def test_a_request_beyond_the_engines_room_is_answered(intake: Intake) -> None:
    answers = [len(intake.send(text)) for text in (b"0", b"1", b"2", b"3")]
    assert answers == [0, 0, 0, 1]
    assert intake.refused("unavailable") == 1


def test_refuses_a_request_that_cannot_be_read(intake: Intake) -> None:
    assert len(intake.send(b"\xff")) == 1
    assert intake.refused("invalid") == 1


@pytest.mark.parametrize(
    ("sequence_id", "flags", "expected"),
    [
        (0, 0, None),
        (7, 0, SequencePosition(7, start=False, last=False)),
        (7, 1, SequencePosition(7, start=True, last=False)),
        ("call", 2, SequencePosition("call", start=False, last=True)),
        (7, 3, SequencePosition(7, start=True, last=True)),
    ],
)
def test_a_request_has_a_position_in_its_sequence(
    adapter: Callable[..., Any], sequence_id: int | str, flags: int, expected: SequencePosition | None
) -> None:
    request = MagicMock(correlation_id=lambda: sequence_id, flags=lambda: flags)
    assert adapter("requests", MagicMock()).read_position(request) == expected


@pytest.mark.parametrize("flags", [1, 2, 3])
def test_a_start_or_end_names_its_sequence(adapter: Callable[..., Any], flags: int) -> None:
    request = MagicMock(correlation_id=lambda: 0, flags=lambda: flags)
    with pytest.raises(InvalidRequest, match="sequence_start and sequence_end require one that is not 0"):
        adapter("requests", MagicMock()).read_position(request)
