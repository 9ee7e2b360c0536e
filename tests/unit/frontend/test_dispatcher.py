"""The dispatcher parses each kind of request and passes it on, without Triton."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from qwen3_tts_engine.frontend.dispatcher import Dispatcher
from qwen3_tts_engine.request import (
    Cancelled,
    InvalidRequest,
    RequestError,
    SequencePosition,
    SpeechOptions,
    SynthesisRequest,
    Unavailable,
)
from qwen3_tts_engine.voice import Voice

VOICE = Voice(np.zeros(4, np.float32))
FIRST, LATER = SequencePosition(7, start=True, last=False), SequencePosition(7, start=False, last=True)


class Harness:
    """A dispatcher on mocks; `voices` answers with `found`."""

    def __init__(self, *, clones: bool = False) -> None:
        self.engine, self.prompts, self.sequences = MagicMock(), MagicMock(mode="for CustomVoice"), MagicMock()
        self.voices = MagicMock() if clones else None
        self.found: Voice | RequestError = VOICE
        if self.voices:
            self.voices.find = lambda request, then: then(self.found)
        self.caller = MagicMock(key="key", arrived=1.5, is_cancelled=lambda: False)
        self.is_draining = False
        self.dispatcher = Dispatcher(self.engine, self.prompts, self.voices, self.sequences, lambda: self.is_draining)

    def accept(self, position: SequencePosition | None = None, **fields: Any) -> None:
        self.dispatcher.accept(fields, self.caller, position)

    @property
    def refusal(self) -> RequestError:
        [(caller, error)] = [call.args for call in self.engine.delivery.finish.call_args_list]
        assert caller is self.caller
        return error  # type: ignore[no-any-return]


def test_submits_a_stream_for_a_text() -> None:
    harness = Harness()
    harness.accept(text="Hello.", speaker="ryan")
    harness.prompts.stream.assert_called_once_with(
        SynthesisRequest(text="Hello.", speaker="ryan"), harness.caller, "key", 1.5
    )
    harness.engine.submit.assert_called_once_with(harness.prompts.stream.return_value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "text: None: Field required"),
        ({"text": "x", "temperature": -1.0}, "temperature: -1: "),
        (
            {"operation": "sing"},
            "operation: 'sing': unknown: choose one of speak, register_voice, list_voices, delete_voice",
        ),
        ({"operation": "list_voices"}, "operation: 'list_voices': for CustomVoice"),
    ],
)
def test_refuses_an_invalid_request_at_once(fields: dict[str, Any], message: str) -> None:
    harness = Harness()
    with pytest.raises(InvalidRequest, match=message):
        harness.accept(**fields)
    assert not harness.engine.submit.called


def test_submits_a_clone_with_its_voice() -> None:
    harness = Harness(clones=True)
    harness.accept(text="Hello.", voice="anna")
    [request, *_] = harness.prompts.stream.call_args.args
    assert request.cloned is VOICE
    harness.prompts.check.assert_called_once()


def test_reports_a_failed_voice_lookup_to_the_caller() -> None:
    harness = Harness(clones=True)
    harness.found = Unavailable("busy")
    harness.accept(text="Hello.", voice="anna")
    assert harness.refusal is harness.found
    assert not harness.engine.submit.called


def test_does_not_submit_a_clone_whose_caller_has_cancelled() -> None:
    harness = Harness(clones=True)
    harness.caller.is_cancelled = lambda: True
    harness.accept(text="Hello.", voice="anna")
    assert isinstance(harness.refusal, Cancelled)
    assert not harness.engine.submit.called


def test_reports_a_full_engine_to_the_caller_of_a_clone() -> None:
    harness = Harness(clones=True)
    harness.engine.submit.side_effect = Unavailable("full")
    harness.accept(text="Hello.", voice="anna")
    assert str(harness.refusal) == "full"


@pytest.mark.parametrize("operation", ["register_voice", "list_voices", "delete_voice"])
def test_answers_a_voice_operation_with_records(operation: str) -> None:
    harness = Harness(clones=True)
    harness.accept(operation=operation, text="", voice="anna")
    assert harness.voices is not None
    method = getattr(harness.voices, operation.removesuffix("_voice").removesuffix("_voices"))
    then = method.call_args.args[-1]
    then([SimpleNamespace(public=lambda: '{"name": "anna"}')])
    harness.caller.reply.assert_called_once_with(['{"name": "anna"}'])
    then(Unavailable("busy"))
    assert str(harness.refusal) == "busy"


def test_lists_the_speakers() -> None:
    harness = Harness()
    harness.prompts.speakers.return_value = [{"name": "MyVoice", "dialect": None}]
    harness.accept(operation="list_speakers")
    harness.caller.reply.assert_called_once_with(['{"name": "MyVoice", "dialect": null}'])


def test_the_first_piece_opens_a_sequence_with_its_options() -> None:
    harness = Harness()
    harness.accept(FIRST, text="Hel", speaker="ryan")
    harness.sequences.open.assert_called_once_with(7, "Hel", False)
    call = harness.sequences.begin.call_args
    assert call.args == (harness.sequences.open.return_value, SpeechOptions(speaker="ryan"))
    assert call.kwargs == {"sink": harness.caller, "key": "key", "arrived": 1.5}


def test_a_later_piece_appends_text_and_ends_at_once() -> None:
    harness = Harness()
    harness.accept(LATER, text="lo.")
    harness.sequences.append.assert_called_once_with(7, "lo.", True)
    harness.caller.finish.assert_called_once_with(None)


def test_refuses_options_in_a_later_piece() -> None:
    harness = Harness()
    with pytest.raises(InvalidRequest, match="speaker: 'ryan': allowed only on the first request of a sequence"):
        harness.accept(LATER, text="lo.", speaker="ryan")
    assert not harness.sequences.append.called


def test_abandons_a_sequence_that_does_not_begin() -> None:
    harness = Harness()
    harness.sequences.begin.side_effect = InvalidRequest("speaker", "x", "one of ryan")
    with pytest.raises(InvalidRequest):
        harness.accept(FIRST, text="Hel", speaker="x")
    harness.sequences.abandon.assert_called_once_with(harness.sequences.open.return_value)


def test_refuses_a_voice_operation_in_a_sequence() -> None:
    harness = Harness(clones=True)
    with pytest.raises(InvalidRequest, match="operation: 'list_voices': only speak can be a sequence"):
        harness.accept(FIRST, operation="list_voices")


@pytest.mark.parametrize("fields", [{"text": "x", "speaker": "ryan"}, {"operation": "list_voices"}])
@pytest.mark.parametrize("position", [None, FIRST])
def test_refuses_new_requests_while_the_server_drains(
    fields: dict[str, Any], position: SequencePosition | None
) -> None:
    harness = Harness(clones=True)
    harness.is_draining = True
    with pytest.raises(Unavailable, match="the server is draining"):
        harness.accept(position, **fields)
    assert not harness.engine.submit.called
    assert not harness.sequences.open.called


def test_open_sequences_get_their_text_while_the_server_drains() -> None:
    harness = Harness()
    harness.is_draining = True
    harness.accept(LATER, text="more")
    harness.sequences.append.assert_called_once_with(7, "more", True)
