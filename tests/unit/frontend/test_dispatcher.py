"""The dispatcher gives each kind of request a type and hands it on, without Triton."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from qwen3_tts_engine.frontend.dispatcher import Dispatcher
from qwen3_tts_engine.frontend.sequences import SequencePosition
from qwen3_tts_engine.request import (
    Cancelled,
    InvalidRequest,
    RequestError,
    SpeechOptions,
    SynthesisRequest,
    Unavailable,
)
from qwen3_tts_engine.voice import Voice

VOICE = Voice(np.zeros(4, np.float32))
FIRST, LATER = SequencePosition(7, start=True, last=False), SequencePosition(7, start=False, last=True)


class Desk:
    """A dispatcher on mocks; `voices` finds VOICE, or raises or answers what it is told."""

    def __init__(self, *, clones: bool = False) -> None:
        self.engine, self.prompts, self.sequences = MagicMock(), MagicMock(mode="for CustomVoice"), MagicMock()
        self.voices = MagicMock() if clones else None
        self.found: Voice | RequestError = VOICE
        if self.voices:
            self.voices.find = lambda request, then: then(self.found)
        self.caller = MagicMock(key="key", arrived=1.5, is_cancelled=lambda: False)
        self.dispatcher = Dispatcher(self.engine, self.prompts, self.voices, self.sequences)

    def accept(self, position: SequencePosition | None = None, **fields: Any) -> None:
        self.dispatcher.accept(fields, self.caller, position)

    @property
    def refusal(self) -> RequestError:
        [(caller, error)] = [call.args for call in self.engine.refuse.call_args_list]
        assert caller is self.caller
        return error  # type: ignore[no-any-return]


def test_a_text_becomes_a_stream() -> None:
    desk = Desk()
    desk.accept(text="Hello.", speaker="ryan")
    desk.prompts.stream.assert_called_once_with(
        SynthesisRequest(text="Hello.", speaker="ryan"), desk.caller, "key", 1.5
    )
    desk.engine.submit.assert_called_once_with(desk.prompts.stream.return_value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "text: None: Field required"),
        ({"text": "x", "temperature": -1.0}, "temperature: -1: "),
        ({"operation": "sing"}, "operation: 'sing': one of speak, register_voice, list_voices, delete_voice"),
        ({"operation": "list_voices"}, "operation: 'list_voices': for CustomVoice"),
    ],
)
def test_a_request_out_of_range_is_refused_at_once(fields: dict[str, Any], message: str) -> None:
    desk = Desk()
    with pytest.raises(InvalidRequest, match=message):
        desk.accept(**fields)
    assert not desk.engine.submit.called


def test_a_clone_is_queued_in_its_voice() -> None:
    desk = Desk(clones=True)
    desk.accept(text="Hello.", voice="anna")
    [request, *_] = desk.prompts.stream.call_args.args
    assert request.cloned is VOICE
    desk.prompts.check.assert_called_once()


def test_a_voice_that_is_not_found_is_the_callers_error() -> None:
    desk = Desk(clones=True)
    desk.found = Unavailable("busy")
    desk.accept(text="Hello.", voice="anna")
    assert desk.refusal is desk.found
    assert not desk.engine.submit.called


def test_a_caller_that_left_while_its_voice_was_made_is_not_queued() -> None:
    desk = Desk(clones=True)
    desk.caller.is_cancelled = lambda: True
    desk.accept(text="Hello.", voice="anna")
    assert isinstance(desk.refusal, Cancelled)
    assert not desk.engine.submit.called


def test_an_engine_that_is_full_refuses_a_clone_too() -> None:
    desk = Desk(clones=True)
    desk.engine.submit.side_effect = Unavailable("full")
    desk.accept(text="Hello.", voice="anna")
    assert str(desk.refusal) == "full"


@pytest.mark.parametrize("operation", ["register_voice", "list_voices", "delete_voice"])
def test_an_operation_is_answered_with_records(operation: str) -> None:
    desk = Desk(clones=True)
    desk.accept(operation=operation, text="", voice="anna")
    assert desk.voices is not None
    method = getattr(desk.voices, operation.removesuffix("_voice").removesuffix("_voices"))
    then = method.call_args.args[-1]
    then([SimpleNamespace(public=lambda: '{"name": "anna"}')])
    desk.caller.reply.assert_called_once_with(['{"name": "anna"}'])
    then(Unavailable("busy"))
    assert str(desk.refusal) == "busy"


def test_the_first_piece_says_how_to_speak() -> None:
    desk = Desk()
    desk.accept(FIRST, text="Hel", speaker="ryan")
    desk.sequences.open.assert_called_once_with(7, "Hel", False)
    call = desk.sequences.begin.call_args
    assert call.args == (desk.sequences.open.return_value, SpeechOptions(speaker="ryan"))
    assert call.kwargs == {"sink": desk.caller, "key": "key", "arrived": 1.5}


def test_a_later_piece_brings_text_and_ends_at_once() -> None:
    desk = Desk()
    desk.accept(LATER, text="lo.")
    desk.sequences.append.assert_called_once_with(7, "lo.", True)
    desk.caller.finish.assert_called_once_with(None)


def test_a_later_piece_changes_no_option() -> None:
    desk = Desk()
    with pytest.raises(InvalidRequest, match="speaker: 'ryan': allowed only on the first request of a sequence"):
        desk.accept(LATER, text="lo.", speaker="ryan")
    assert not desk.sequences.append.called


def test_a_sequence_that_does_not_begin_is_forgotten() -> None:
    desk = Desk()
    desk.sequences.begin.side_effect = InvalidRequest("speaker", "x", "one of ryan")
    with pytest.raises(InvalidRequest):
        desk.accept(FIRST, text="Hel", speaker="x")
    desk.sequences.abandon.assert_called_once_with(desk.sequences.open.return_value)


def test_an_operation_is_no_sequence() -> None:
    desk = Desk(clones=True)
    with pytest.raises(InvalidRequest, match="operation: 'list_voices': only speak can be a sequence"):
        desk.accept(FIRST, operation="list_voices")
