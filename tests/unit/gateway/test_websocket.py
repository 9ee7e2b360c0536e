"""WS /v1/audio/speech/stream before a stub server that follows scripts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from qwen3_tts_gateway.access import KEY_PROTOCOL, new_key
from qwen3_tts_gateway.schema import SessionOptions
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer, input_text, text_of
from tests.unit.gateway.conftest import script, wait_for
from tests.unit.gateway.decoding import frames_of_wav

PATH = "/v1/audio/speech/stream"
TWO_CHUNKS = script(chunks=[[0, 1], [30, 2]])
BYTES = 3 * 1920 * 2
SURROGATE = '{"type": "input.text", "text": "\\ud800"}'


@pytest.fixture
def socket(gateway: RunningGateway) -> Iterator[ClientConnection]:
    with open_socket(gateway) as socket:
        configure(socket)
        yield socket


def open_socket(gateway: RunningGateway, **options: Any) -> ClientConnection:
    opened: ClientConnection = connect(f"ws://{gateway.address}{PATH}", **options)
    return opened


def configure(socket: ClientConnection, **fields: object) -> None:
    defaults = {"voice": "ryan", "response_format": "pcm", "stream_audio": True}
    send(socket, "session.config", **(defaults | fields))


def send(socket: ClientConnection, kind: str, **fields: object) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def say(socket: ClientConnection, text: str) -> None:
    send(socket, "input.text", text=text)
    send(socket, "input.done")


def until_done(socket: ClientConnection) -> tuple[list[dict[str, Any]], bytes]:
    """The messages and the audio up to session.done."""
    messages: list[dict[str, Any]] = []
    audio = b""
    while not messages or messages[-1]["type"] != "session.done":
        received = socket.recv(timeout=10)
        if isinstance(received, bytes):
            audio += received
        else:
            messages.append(json.loads(received))
    return messages, audio


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in messages]


def test_text_becomes_audio(socket: ClientConnection) -> None:
    say(socket, TWO_CHUNKS)
    messages, audio = until_done(socket)
    assert kinds(messages) == ["audio.start", "audio.done", "session.done"]
    start, done, session = messages
    assert (start["format"], start["sample_rate"], start["sentence_text"]) == ("pcm", 24_000, TWO_CHUNKS)
    assert (done["total_bytes"], done["error"], len(audio)) == (BYTES, False, BYTES)
    assert (session["utterance_index"], session["total_sentences"]) == (0, 1)


def test_the_end_of_audio_says_why(socket: ClientConnection) -> None:
    say(socket, script(chunks=[[0, 1]], usage=[1, 7, 20, 0], reason="incomplete"))
    messages, _ = until_done(socket)
    assert messages[1]["type"] == "audio.done"
    assert (messages[1]["finish_reason"], messages[1]["usage"]["output_tokens"]) == ("incomplete", 1)


def test_a_session_has_language_codes_and_null(socket: ClientConnection, stub: StubServer) -> None:
    nothing = dict.fromkeys(SessionOptions.model_fields)
    configure(socket, **nothing | {"language": "zh-CN", "seed": -1, "top_k": -1})
    say(socket, TWO_CHUNKS)
    messages, _ = until_done(socket)
    assert messages[0]["format"] == "wav"
    first = next(r for r in reversed(stub.servicer.received) if text_of(r) == TWO_CHUNKS)
    assert input_text(first, "language") == "chinese"
    assert {tensor.name for tensor in first.inputs} == {"text", "language", "speaker", "top_k"}


def test_audio_comes_while_text_is_still_to_come(socket: ClientConnection, stub: StubServer) -> None:
    received = len(stub.servicer.received)
    send(socket, "input.text", text=TWO_CHUNKS)
    assert json.loads(socket.recv(timeout=10))["type"] == "audio.start"
    assert isinstance(socket.recv(timeout=10), bytes)
    send(socket, "input.text", text=" More.")
    send(socket, "input.done")
    until_done(socket)
    assert [text_of(request) for request in stub.servicer.received[received:]] == [TWO_CHUNKS, " More.", ""]


def test_utterances_follow_each_other_on_one_connection(socket: ClientConnection) -> None:
    for _ in range(3):
        say(socket, TWO_CHUNKS)
    for index in range(3):
        messages, audio = until_done(socket)
        assert ({message["utterance_index"] for message in messages}, len(audio)) == ({index}, BYTES)


def test_without_stream_audio_an_utterance_is_one_message(socket: ClientConnection) -> None:
    configure(socket, stream_audio=False, response_format="wav")
    say(socket, TWO_CHUNKS)
    assert json.loads(socket.recv(timeout=10))["format"] == "wav"
    audio = socket.recv(timeout=10)
    assert isinstance(audio, bytes)
    assert (audio[:4], len(audio)) == (b"RIFF", 44 + BYTES)
    assert frames_of_wav(audio) == BYTES // 2


def test_no_text_is_no_sentence(socket: ClientConnection) -> None:
    send(socket, "input.text", text="")
    send(socket, "input.done")
    messages, _ = until_done(socket)
    assert messages == [{"type": "session.done", "utterance_index": 0, "total_sentences": 0}]


def test_cancel_silences_at_once(socket: ClientConnection, stub: StubServer) -> None:
    cancelled = stub.servicer.cancelled
    send(socket, "input.text", text=script(chunks=[[0, 1]], hang=True))
    say_next = socket.recv(timeout=10), socket.recv(timeout=10)
    assert isinstance(say_next[1], bytes)
    send(socket, "input.cancel")
    messages, _ = until_done(socket)
    assert kinds(messages) == ["audio.done", "session.done"]
    assert all(message["cancelled"] for message in messages)
    wait_for(lambda: stub.servicer.cancelled > cancelled)
    say(socket, TWO_CHUNKS)
    assert len(until_done(socket)[1]) == BYTES


def test_a_disconnect_cancels_the_stream(gateway: RunningGateway, stub: StubServer) -> None:
    cancelled = stub.servicer.cancelled
    with open_socket(gateway) as socket:
        configure(socket)
        send(socket, "input.text", text=script(chunks=[[0, 1]], hang=True))
        socket.recv(timeout=10)
    wait_for(lambda: stub.servicer.cancelled > cancelled)
    wait_for(lambda: gateway.services.backend.streams == 0)


def test_close_speaks_what_is_there(socket: ClientConnection) -> None:
    send(socket, "input.text", text=TWO_CHUNKS)
    send(socket, "session.close")
    assert len(until_done(socket)[1]) == BYTES
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


@pytest.mark.parametrize(
    ("error", "param"),
    [("INVALID_ARG: speaker: 'x': unknown: choose one of aiden", "voice"), ("UNAVAILABLE: busy: 64 streams", None)],
)
def test_an_error_ends_the_utterance_and_not_the_session(
    socket: ClientConnection, error: str, param: str | None
) -> None:
    say(socket, script(error=error))
    messages, _ = until_done(socket)
    assert kinds(messages) == ["error", "audio.start", "audio.done", "session.done"]
    assert (messages[0]["param"], messages[2]["error"]) == (param, True)
    say(socket, TWO_CHUNKS)
    assert len(until_done(socket)[1]) == BYTES


@pytest.mark.parametrize(
    "message",
    [
        "{",
        "[]",
        '"x"',
        '{"type": 1}',
        '{"type": "input.texts"}',
        '{"type": "input.text"}',
        SURROGATE,
        b"\x00\x01",
        "[" * 9999,
    ],
)
def test_a_wrong_message_is_an_error_and_the_session_goes_on(socket: ClientConnection, message: str | bytes) -> None:
    socket.send(message)
    assert json.loads(socket.recv(timeout=10))["type"] == "error"
    say(socket, TWO_CHUNKS)
    assert len(until_done(socket)[1]) == BYTES


def test_too_much_text_is_refused(socket: ClientConnection) -> None:
    send(socket, "input.text", text="x" * 4097)
    assert "4097 characters, at most 4096" in json.loads(socket.recv(timeout=10))["message"]


def test_a_session_cannot_change_while_text_is_open(socket: ClientConnection) -> None:
    send(socket, "input.text", text=script(hang=True))
    configure(socket)
    assert "send input.done first" in json.loads(socket.recv(timeout=10))["message"]


@pytest.mark.parametrize("first", [{"type": "input.text", "text": "a"}, {"type": "session.config", "speed": 9}])
def test_a_wrong_first_message_closes(gateway: RunningGateway, first: dict[str, object]) -> None:
    with open_socket(gateway) as socket:
        socket.send(json.dumps(first))
        assert json.loads(socket.recv(timeout=10))["type"] == "error"
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=10)


def test_text_is_sent_again_to_another_server(stub: StubServer) -> None:
    with RunningGateway("localhost:1", stub.url) as gateway:
        for _ in range(2):
            with open_socket(gateway) as socket:
                configure(socket)
                send(socket, "input.text", text=TWO_CHUNKS)
                say(socket, " More.")
                assert len(until_done(socket)[1]) == BYTES


def test_an_idle_client_is_disconnected(stub: StubServer) -> None:
    with RunningGateway(stub.url, idle_seconds=1) as gateway, open_socket(gateway) as socket:
        configure(socket)
        say(socket, script(chunks=[[0, 1], [2000, 1]]))
        until_done(socket)
        assert json.loads(socket.recv(timeout=10))["code"] == "idle"


def test_a_key_comes_as_header_or_subprotocol(stub: StubServer, tmp_path: Path) -> None:
    key, line = new_key("anna")
    (tmp_path / "keys").write_text(line)
    with RunningGateway(stub.url, keys_file=tmp_path / "keys") as gateway:
        with open_socket(gateway, additional_headers={"Authorization": f"Bearer {key}"}):
            pass
        with open_socket(gateway, subprotocols=["realtime", KEY_PROTOCOL + key]) as socket:
            assert socket.subprotocol == "realtime"
        with pytest.raises(InvalidStatus, match="401"):
            open_socket(gateway)


def test_streamed_characters_of_a_key_are_limited(stub: StubServer, tmp_path: Path) -> None:
    key, line = new_key("anna")
    (tmp_path / "keys").write_text(f"{line} characters=10")
    with (
        RunningGateway(stub.url, keys_file=tmp_path / "keys") as gateway,
        open_socket(gateway, additional_headers={"Authorization": f"Bearer {key}"}) as socket,
    ):
        configure(socket)
        for _ in range(2):
            say(socket, "hello")
            assert "error" not in kinds(until_done(socket)[0])
        send(socket, "input.text", text="!")
        assert json.loads(socket.recv(timeout=10))["code"] == "rate_limit_exceeded"


def test_pages_of_other_sites_are_refused(gateway: RunningGateway) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        open_socket(gateway, origin="https://evil.example")
