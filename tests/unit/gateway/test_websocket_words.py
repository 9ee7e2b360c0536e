"""Word times and barge-in over the WebSocket, before a stub server that tells words."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from tests.fakes.gateway import RunningGateway
from tests.fakes.word_server import WORD_SAMPLES, WordServer
from tests.unit.gateway.conftest import wait_for
from tests.unit.gateway.test_websocket import configure, kinds, open_socket, say, send, until_done
from tests.unit.gateway.test_words import GRANULARITIES, TEXT, check, latest

WORD_MS = WORD_SAMPLES / 24


@pytest.fixture
def socket(words: WordServer) -> Iterator[ClientConnection]:
    with RunningGateway(words.url) as gateway, open_socket(gateway) as socket:
        configure(socket, **GRANULARITIES)
        yield socket


def received(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The next message of a kind."""
    while True:
        message = socket.recv(timeout=10)
        if isinstance(message, str) and json.loads(message)["type"] == kind:
            found: dict[str, Any] = json.loads(message)
            return found


def test_words_are_told_before_their_audio(socket: ClientConnection) -> None:
    send(socket, "input.text", text=TEXT[:9])
    send(socket, "input.text", text=TEXT[9:])
    send(socket, "input.done")
    start = json.loads(socket.recv(timeout=10))
    assert (start["type"], start["sample_rate"]) == ("audio.start", 24_000)
    first = json.loads(socket.recv(timeout=10))
    assert (first["type"], [word["index"] for word in first["words"]]) == ("audio.words", [0])
    assert isinstance(socket.recv(timeout=10), bytes)
    messages, _ = until_done(socket)
    check(latest([first, *messages]), TEXT)
    assert messages[-2]["spoken_share"] == 1.0


def test_words_come_before_audio_that_is_sent_whole(socket: ClientConnection) -> None:
    configure(socket, stream_audio=False, speed=2.0, **GRANULARITIES)
    say(socket, TEXT)
    messages, audio = until_done(socket)
    assert set(kinds(messages)[1:-2]) == {"audio.words"}
    assert len(audio) > 0
    check(latest(messages), TEXT, speed=2.0)


def test_text_in_parts_has_words_of_the_whole_text(socket: ClientConnection, words: WordServer) -> None:
    text = "It is late. " * 110 + "\n\n   Good night. " + "So it is. " * 110
    for start in range(0, len(text), 7):
        send(socket, "input.text", text=text[start : start + 7])
    send(socket, "input.done")
    messages, _ = until_done(socket)
    begun = [request for request in words.servicer.received if "word_times" in [t.name for t in request.inputs]]
    assert len(begun) > 1
    check(latest(messages), text)


def test_vllm_omnis_messages_carry_audio_and_words(socket: ClientConnection) -> None:
    configure(socket, word_timestamps=True)
    say(socket, "One two.")
    messages, binary = until_done(socket)
    assert (kinds(messages), binary) == (["audio.start", *["audio.chunk"] * 3, "audio.done", "session.done"], b"")
    chunks = messages[1:4]
    assert [chunk["chunk_id"] for chunk in chunks] == [0, 1, 2]
    assert [(chunk["chunk_start_ms"], chunk["chunk_end_ms"]) for chunk in chunks] == [(0, 160), (160, 320), (320, 320)]
    assert [len(base64.b64decode(chunk["audio_b64"])) for chunk in chunks] == [2 * WORD_SAMPLES] * 2 + [0]
    assert [chunk["timestamps"] for chunk in chunks] == [
        None,
        [{"word": "One", "start_ms": 0, "end_ms": 140}],
        [{"word": "two.", "start_ms": 160, "end_ms": 300}],
    ]
    assert messages[-2]["total_bytes"] == 4 * WORD_SAMPLES


@pytest.mark.parametrize("fields", [{"stream_audio": False}, {"response_format": "wav"}])
def test_vllm_omnis_messages_carry_nothing_else(socket: ClientConnection, fields: dict[str, Any]) -> None:
    configure(socket, word_timestamps=True, **fields)
    assert json.loads(socket.recv(timeout=10))["param"] == "word_timestamps"


def test_a_checkpoint_without_heads_ends_the_utterance_with_an_error(
    socket: ClientConnection, words: WordServer
) -> None:
    words.servicer.has_heads = False
    say(socket, TEXT)
    messages, _ = until_done(socket)
    assert (kinds(messages)[0], messages[0]["param"]) == ("error", "timestamp_granularities")


def test_barge_in_is_answered_with_the_text_that_was_heard(socket: ClientConnection, words: WordServer) -> None:
    words.servicer.hangs_after = 4
    say(socket, TEXT)
    for _ in range(4):
        received(socket, "audio.words")
    wait_for(lambda: words.servicer.hanging == 1)
    send(socket, "input.cancel", played_ms=2.5 * WORD_MS)
    heard = received(socket, "audio.heard")
    assert heard == {
        "type": "audio.heard",
        "utterance_index": 0,
        "played_ms": 2.5 * WORD_MS,
        "heard_characters": TEXT.index(",  it") + 1,
        "heard_text": "  “Well,” said Anna,",
    }
    messages, _ = until_done(socket)
    assert kinds(messages) == ["audio.done", "session.done"]
    assert all(message["cancelled"] for message in messages)
    wait_for(lambda: words.servicer.cancelled == 1 and words.servicer.running == 0)


def test_barge_in_counts_the_time_at_its_speed(socket: ClientConnection) -> None:
    configure(socket, speed=2.0, **GRANULARITIES)
    say(socket, "One two three.")
    until_done(socket)
    send(socket, "input.cancel", played_ms=0.75 * WORD_MS)
    assert received(socket, "audio.heard")["heard_text"] == "One two"


def test_an_utterance_that_was_sent_may_still_be_playing(socket: ClientConnection) -> None:
    for text in ("One two.", "Three four."):
        say(socket, text)
        until_done(socket)
    send(socket, "input.cancel", played_ms=0.5 * WORD_MS)
    assert received(socket, "audio.heard")["heard_text"] == "Three"
    send(socket, "input.cancel", played_ms=9e3, utterance_index=0)
    assert received(socket, "audio.heard")["heard_text"] == "One two."


def test_what_was_heard_is_null_where_it_is_not_known(socket: ClientConnection, words: WordServer) -> None:
    words.servicer.unknown = {"two"}
    say(socket, "One two three.")
    until_done(socket)
    for played, heard in ((0.5, "One"), (1.5, None), (2.5, "One two three.")):
        send(socket, "input.cancel", played_ms=played * WORD_MS)
        assert received(socket, "audio.heard")["heard_text"] == heard
    configure(socket)
    say(socket, "One two three.")
    until_done(socket)
    send(socket, "input.cancel", played_ms=WORD_MS)
    answer = received(socket, "audio.heard")
    assert (answer["heard_characters"], answer["heard_text"]) == (None, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"played_ms": -1}, "played_ms"),
        ({"played_ms": "12"}, "played_ms"),
        ({"played_ms": True}, "played_ms"),
        ({"played_ms": 10**400}, "played_ms"),
        ({"played_ms": 1, "utterance_index": 7}, "utterance_index"),
        ({"played_ms": 1, "utterance_index": False}, "utterance_index"),
    ],
)
def test_a_wrong_barge_in_is_an_error(socket: ClientConnection, fields: dict[str, Any], param: str) -> None:
    say(socket, "One.")
    until_done(socket)
    send(socket, "input.cancel", **fields)
    assert received(socket, "error")["param"] == param


def test_barge_in_before_any_speech_is_an_error(socket: ClientConnection) -> None:
    send(socket, "input.cancel", played_ms=1)
    assert received(socket, "error")["param"] == "utterance_index"
