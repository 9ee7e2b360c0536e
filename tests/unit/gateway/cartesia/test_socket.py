"""WS /tts/websocket before a stub server that tells words."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from qwen3_tts_gateway.access import new_key
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import input_text, text_of
from tests.fakes.word_server import SPOKEN_SAMPLES, WORD_SAMPLES, WordServer
from tests.unit.gateway.conftest import wait_for

PATH = "/tts/websocket?cartesia_version=2025-04-16"
WORD_S, SPOKEN_S = WORD_SAMPLES / 24_000, SPOKEN_SAMPLES / 24_000
OPTIONS: dict[str, Any] = {
    "model_id": "sonic-3",
    "voice": {"mode": "id", "id": "ryan"},
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
    "language": "en",
    "add_timestamps": True,
}


@pytest.fixture
def gateway(words: WordServer) -> Iterator[RunningGateway]:
    with RunningGateway(words.url) as gateway:
        yield gateway


@pytest.fixture
def socket(gateway: RunningGateway) -> Iterator[ClientConnection]:
    with connect(f"ws://{gateway.address}{PATH}") as socket:
        yield socket


def send(socket: ClientConnection, transcript: str, context_id: str = "a", /, **fields: Any) -> None:
    socket.send(json.dumps(OPTIONS | {"transcript": transcript, "context_id": context_id} | fields))


def until_done(socket: ClientConnection, context_id: str = "a") -> list[dict[str, Any]]:
    """The messages of a context up to its end."""
    messages: list[dict[str, Any]] = []
    while not messages or not messages[-1]["done"]:
        message = json.loads(socket.recv(timeout=10))
        messages += [message] if message["context_id"] == context_id else []
    return messages


def columns(messages: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The words of all messages."""
    told = [message["word_timestamps"] for message in messages if message["type"] == "timestamps"]
    return {name: [value for each in told for value in each[name]] for name in ("words", "start", "end")}


def audio_of(messages: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(message["data"]) for message in messages if message["type"] == "chunk")


def test_a_text_becomes_chunks_and_words(socket: ClientConnection, words: WordServer) -> None:
    send(socket, "One two three.")
    messages = until_done(socket)
    assert (messages[-1]["type"], messages[-1]["status_code"]) == ("done", 200)
    assert len(audio_of(messages)) == 3 * 2 * WORD_SAMPLES
    found = columns(messages)
    assert found["words"] == ["One", "two", "three."]
    assert found["start"] == pytest.approx([i * WORD_S for i in range(3)], abs=1e-3)
    assert found["end"] == pytest.approx([i * WORD_S + SPOKEN_S for i in range(3)], abs=1e-3)
    first = next(request for request in words.servicer.received if text_of(request))
    assert (input_text(first, "speaker"), input_text(first, "language")) == ("ryan", "english")


@pytest.mark.parametrize(
    ("pieces", "delay_ms", "spoken"),
    [
        (["Hel", "lo. ", "There."], None, ["Hello.", "There."]),
        (["Hello.", "There."], 0, ["Hello.", "There."]),
        (["Hello. ", "There.", " "], 0, ["Hello.", "There."]),
    ],
)
def test_transcripts_of_a_context_are_one_text(
    socket: ClientConnection, pieces: list[str], delay_ms: int | None, spoken: list[str]
) -> None:
    for piece in pieces:
        send(socket, piece, **{"continue": True, "max_buffer_delay_ms": delay_ms})
    send(socket, "", **{"continue": False})
    assert columns(until_done(socket))["words"] == spoken


def test_contexts_are_spoken_beside_each_other(socket: ClientConnection, words: WordServer) -> None:
    send(socket, "One.", "a", **{"continue": True})
    send(socket, "Two.", "b")
    assert columns(until_done(socket, "b"))["words"] == ["Two."]
    send(socket, "", "a")
    assert columns(until_done(socket, "a"))["words"] == ["One."]
    send(socket, "Three.", "a")
    assert columns(until_done(socket, "a"))["words"] == ["Three."]


def test_cancel_stops_the_work_of_a_context_alone(
    socket: ClientConnection, gateway: RunningGateway, words: WordServer
) -> None:
    words.servicer.hangs_after = 2
    send(socket, "One two three.", "a")
    send(socket, "Four.", "b")
    until_done(socket, "b")
    wait_for(lambda: words.servicer.hanging == 1 and gateway.services.backend.streams == 1)
    socket.send(json.dumps({"context_id": "a", "cancel": True}))
    wait_for(lambda: words.servicer.cancelled == 1 and gateway.services.backend.streams == 0)
    send(socket, "Five.", "c")
    assert columns(until_done(socket, "c"))["words"] == ["Five."]


def test_a_disconnect_cancels_all_contexts(gateway: RunningGateway, words: WordServer) -> None:
    words.servicer.hangs_after = 0
    with connect(f"ws://{gateway.address}{PATH}") as socket:
        for context_id in ("a", "b"):
            send(socket, "One.", context_id)
        wait_for(lambda: words.servicer.hanging == 2)
    wait_for(lambda: words.servicer.cancelled == 2)


def test_a_word_of_unknown_time_is_left_out(socket: ClientConnection, words: WordServer) -> None:
    words.servicer.unknown = {"two"}
    send(socket, "One two three.")
    assert columns(until_done(socket))["words"] == ["One", "three."]


def test_words_are_sent_only_if_they_are_asked_for(socket: ClientConnection, words: WordServer) -> None:
    words.servicer.has_heads = False
    send(socket, "One.", add_timestamps=False)
    assert {message["type"] for message in until_done(socket)} == {"chunk", "done"}
    send(socket, "One.")
    [error] = until_done(socket)
    assert (error["type"], error["status_code"]) == ("error", 400)
    assert error["message"].startswith("add_timestamps: requires attention heads")


def test_speed_encoding_and_rate(socket: ClientConnection) -> None:
    output = {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000}
    send(socket, "One two three four five.", output_format=output, generation_config={"speed": 2, "volume": 1})
    messages = until_done(socket)
    assert len(audio_of(messages)) == pytest.approx(5 * WORD_S / 2 * 8000, rel=0.1)
    assert columns(messages)["start"][-1] == pytest.approx(4 * WORD_S / 2, abs=1e-3)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"voice": {"mode": "embedding", "embedding": [0.1]}}, "voice.mode"),
        ({"voice": {"mode": "id", "id": 3}}, "voice.id"),
        ({"output_format": {"encoding": "pcm_f32le"}}, "output_format.encoding"),
        ({"output_format": {"container": "wav"}}, "output_format.container"),
        ({"output_format": {"sample_rate": 1}}, "sample_rate"),
        ({"generation_config": {"speed": 9}}, "speed"),
        ({"model_id": "whisper"}, "model"),
        ({"context_id": ""}, "context_id"),
        ({"transcript": "x" * 4097}, "transcript"),
        ({"transcript": "\ud800"}, "transcript"),
        ({"transcript": None}, "transcript"),
    ],
)
def test_a_wrong_field_is_named(socket: ClientConnection, fields: dict[str, Any], named: str) -> None:
    send(socket, "One.", **fields)
    error = json.loads(socket.recv(timeout=10))
    assert (error["type"], error["done"]) == ("error", True)
    assert error["message"].startswith(f"{named}: "), error
    send(socket, "Two.", "b")
    assert columns(until_done(socket, "b"))["words"] == ["Two."]


@pytest.mark.parametrize("message", ["{", "[]", "3", b"\x00"])
def test_what_is_no_message_is_an_error(socket: ClientConnection, message: str | bytes) -> None:
    socket.send(message)
    error = json.loads(socket.recv(timeout=10))
    assert (error["type"], error["context_id"], error["status_code"]) == ("error", None, 400)
    assert "Generation" not in error["message"]


def test_text_after_the_end_of_a_context_is_refused(socket: ClientConnection, words: WordServer) -> None:
    words.servicer.hangs_after = 0
    send(socket, "One.")
    send(socket, "Two.")
    assert "its text has ended" in json.loads(socket.recv(timeout=10))["message"]


def test_a_context_without_text_is_done(socket: ClientConnection) -> None:
    send(socket, "")
    assert [message["type"] for message in until_done(socket)] == ["done"]


def test_a_key_comes_as_cartesias_clients_send_it(words: WordServer, tmp_path: Path) -> None:
    key, line = new_key("anna")
    (tmp_path / "keys").write_text(line)
    with RunningGateway(words.url, keys_file=tmp_path / "keys") as gateway:
        with connect(f"ws://{gateway.address}{PATH}", additional_headers={"X-API-Key": key}) as socket:
            send(socket, "One.")
            assert columns(until_done(socket))["words"] == ["One."]
        with pytest.raises(InvalidStatus, match="401"):
            connect(f"ws://{gateway.address}{PATH}", additional_headers={"X-API-Key": "x"})
