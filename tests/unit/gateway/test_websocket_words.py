"""Word times and barge-in over the WebSocket, before a stub server that tells words."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from tests.fakes.gateway import RunningGateway
from tests.fakes.word_server import WORD_SAMPLES, WordServer
from tests.unit.gateway.test_websocket import configure, kinds, open_socket, say, send, until_done
from tests.unit.gateway.test_words import GRANULARITIES, TEXT, check, latest

WORD_MS = WORD_SAMPLES / 24


@pytest.fixture
def words() -> Iterator[WordServer]:
    server = WordServer()
    with server:
        yield server


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
