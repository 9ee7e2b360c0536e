"""POST /v1/audio/speech before a stub server that follows scripts."""

import base64
import json
import re
import socket
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest

from qwen3_tts_gateway.schema import SpeechBody
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer, input_text
from tests.unit.gateway.conftest import script, wait_for

PATH = "/v1/audio/speech"
TWO_CHUNKS = script(chunks=[[0, 1], [30, 2]])
SAMPLES = 3 * 1920
FAILED = "the request failed in the server"


def speak(client: httpx.Client, text: str = TWO_CHUNKS, **fields: object) -> httpx.Response:
    return client.post(PATH, json={"input": text, "response_format": "pcm", **fields})


def post(
    gateway: RunningGateway,
    body: Mapping[str, object],
    receive_buffer: int = 1 << 16,
    authorization: str = "",
    path: str = PATH,
) -> socket.socket:
    """Sends a request on a connection of its own, whose response nobody reads yet."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect(("127.0.0.1", int(gateway.address.split(":")[1])))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n"
    head += f"Authorization: {authorization}\r\n\r\n" if authorization else "\r\n"
    connection.sendall(head.encode() + content)
    return connection


def answer_of(gateway: RunningGateway, version: str, *headers: str, text: str = TWO_CHUNKS) -> bytes:
    """Everything that the server sends for one request, until it closes the connection. Raises ConnectionResetError."""
    content = json.dumps({"input": text, "response_format": "pcm"}).encode()
    lines = (f"POST {PATH} HTTP/{version}", "Host: a", f"Content-Length: {len(content)}", *headers, "", "")
    with socket.create_connection(("127.0.0.1", int(gateway.address.split(":")[1])), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode() + content)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def error_of(response: httpx.Response) -> dict[str, object]:
    return dict(response.json()["error"])


def test_pcm_is_the_servers(client: httpx.Client) -> None:
    response = speak(client, voice="alloy")
    assert (response.status_code, response.headers["content-type"]) == (200, "audio/pcm")
    pcm = np.frombuffer(response.content, "<i2")
    assert (len(pcm), set(np.abs(pcm))) == (SAMPLES, {8000})


def test_a_body_that_offers_an_upgrade_to_http2_is_read(gateway: RunningGateway) -> None:
    """Java's HttpClient offers it by default."""
    offer = ("Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    assert answer_of(gateway, "1.1", *offer).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("headers", [(), ("Connection: keep-alive",)])
def test_an_http_1_0_client_gets_no_chunk_sizes(gateway: RunningGateway, headers: tuple[str, ...]) -> None:
    head, _, audio = answer_of(gateway, "1.0", *headers).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert len(audio) == 2 * SAMPLES


def test_fields_become_tensors(client: httpx.Client, stub: StubServer) -> None:
    speak(client, voice={"id": "Alloy"}, instructions="Whisper.", language="English", seed=7, max_new_tokens=9)
    request = stub.servicer.received[-1]
    values = {name: input_text(request, name) for name in ("speaker", "instruct", "language")}
    assert values == {"speaker": "serena", "instruct": "Whisper.", "language": "English"}
    assert {tensor.name for tensor in request.inputs} == {*values, "text", "seed", "max_frames"}


def test_what_is_spoken_of_a_text_is_the_servers_part(client: httpx.Client, stub: StubServer) -> None:
    fields: dict[str, Any] = {"text_policy": "plain", "normalize_text": True, "lexicon": {"Nguyễn": "win"}}
    assert speak(client, input='**Hi** <break time="1s"/>', **fields).status_code == 200
    request = stub.servicer.received[-1]
    names = ("text", "text_policy", "lexicon")
    expected = ('**Hi** <break time="1s"/>', "plain", json.dumps(fields["lexicon"]))
    assert tuple(input_text(request, name) for name in names) == expected
    assert "normalize_text" in {tensor.name for tensor in request.inputs}
    assert speak(client, lexicon=["a"]).json()["error"]["param"] == "lexicon"


@pytest.mark.parametrize(
    ("given", "language"), [("en", "english"), ("zh-CN", "chinese"), ("PT_br", "portuguese"), ("klingon", "klingon")]
)
def test_codes_of_languages_are_names(client: httpx.Client, stub: StubServer, given: str, language: str) -> None:
    assert speak(client, language=given).status_code == 200
    assert input_text(stub.servicer.received[-1], "language") == language


def test_null_is_the_same_as_no_field(client: httpx.Client, stub: StubServer) -> None:
    fields = dict.fromkeys(SpeechBody.model_fields) | {"input": TWO_CHUNKS}
    assert client.post(PATH, json=fields).headers["content-type"] == "audio/mpeg"
    assert {tensor.name for tensor in stub.servicer.received[-1].inputs} == {"text", "speaker"}


def test_minus_one_is_the_whole_vocabulary_and_a_random_seed(client: httpx.Client, stub: StubServer) -> None:
    assert speak(client, top_k=-1, seed=-1).status_code == 200
    request = stub.servicer.received[-1]
    values = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
    assert (values["top_k"], "seed" in values) == (bytes(4), False)


def test_request_id_and_trace_reach_the_server(client: httpx.Client, stub: StubServer) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-request-id": "mine-1"}
    response = client.post(PATH, json={"input": TWO_CHUNKS}, headers=trace)
    assert response.headers["x-request-id"] == stub.servicer.received[-1].id == "mine-1"
    assert stub.servicer.metadata["traceparent"] == trace["traceparent"]


def test_first_chunk_is_sent_before_the_last_exists(gateway: RunningGateway) -> None:
    body = {"input": script(chunks=[[0, 1]], hang=True), "response_format": "mp3"}
    with httpx.stream("POST", gateway.url + PATH, json=body) as response:
        assert next(response.iter_raw())


@pytest.mark.parametrize("fields", [{"stream_format": "sse"}, {"stream": True}])
def test_events_carry_the_audio_and_the_usage(client: httpx.Client, fields: dict[str, Any]) -> None:
    response = speak(client, **fields)
    assert response.headers["content-type"] == "text/event-stream"
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * 2 + ["speech.audio.done"]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert len(audio) == 2 * SAMPLES
    assert events[-1]["usage"]["output_tokens"] == 3


def test_usage_is_the_servers_where_it_reports_one(client: httpx.Client) -> None:
    response = speak(client, script(chunks=[[0, 1]], usage=[1, 7, 20, 0]), stream_format="sse")
    done = json.loads(response.text.strip().splitlines()[-1].removeprefix("data: "))
    counts = {name: done["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")}
    assert counts == {"input_tokens": 7, "output_tokens": 1, "total_tokens": 8}


@pytest.mark.parametrize(("ended", "reason"), [({}, None), ({"usage": [1, 7, 20, 0], "reason": "length"}, "length")])
def test_the_last_event_says_why_the_speech_ended(
    client: httpx.Client, ended: dict[str, Any], reason: str | None
) -> None:
    response = speak(client, script(chunks=[[0, 1]], **ended), stream_format="sse")
    done = json.loads(response.text.strip().splitlines()[-1].removeprefix("data: "))
    assert done["finish_reason"] == reason


def test_stream_format_audio_wins_over_stream(client: httpx.Client) -> None:
    assert speak(client, stream=True, stream_format="audio").headers["content-type"] == "audio/pcm"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": ""}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"input": "x" * 4097}, 400, "input"),
        ({"response_format": "ogg"}, 400, "response_format"),
        ({"speed": 5}, 400, "speed"),
        ({"speed": "fast"}, 400, "speed"),
        ({"sample_rate": 24001}, 400, "sample_rate"),
        ({"sample_rate": 44100, "response_format": "opus"}, 400, "sample_rate"),
        ({"seed": -2}, 400, "seed"),
        ({"top_k": -2}, 400, "top_k"),
        ({"seed": 2**63}, 400, "seed"),
        ({"max_new_tokens": 0}, 400, "max_new_tokens"),
        ({"voice": 3}, 400, "voice"),
        ({"voice": {"name": "x"}}, 400, "voice"),
        ({"model": "whisper-1"}, 404, "model"),
        ({"task_type": "Base"}, 400, "task_type"),
        ({"ref_audio": "https://example.com/a.wav"}, 400, "ref_audio"),
        ({"ref_audio": "data:audio/wav;base64,AAAA"}, 400, "ref_audio"),
        ({"ref_audio": "ÄÄÄ"}, 400, "ref_audio"),
        ({"temperature": float(2**1000)}, 400, "temperature"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, fields: dict[str, Any], status: int, param: str | None) -> None:
    response = speak(client, **fields) if "input" not in fields else client.post(PATH, json=fields)
    assert (response.status_code, error_of(response)["param"]) == (status, param), response.text


@pytest.mark.parametrize(
    ("message", "status", "param", "text"),
    [
        ("INVALID_ARG: speaker: 'x': unknown: choose", 404, "voice", "voice: 'x': unknown: choose"),
        ("INVALID_ARG: speaker: None: required: choose", 400, "voice", "voice: None: required: choose"),
        ("INVALID_ARG: x_vector_only: 3: a truth", 400, "x_vector_only_mode", "x_vector_only_mode: 3: a truth"),
        (
            "[request id: a:b] INVALID_ARG: max_frames: 0: 1 or more",
            400,
            "max_new_tokens",
            "max_new_tokens: 0: 1 or more",
        ),
        ("INVALID_ARG: control tokens are not allowed", 400, None, "control tokens are not allowed"),
        ("UNAVAILABLE: busy: 64 streams run", 429, None, "busy: 64 streams run"),
        ("UNAVAILABLE: the server is shutting down", 503, None, "the server is shutting down"),
        ("UNAVAILABLE: busy: 9 requests wait (intake-0)", 429, None, "busy: 9 requests wait"),
        ("UNAVAILABLE: voices_folder: /srv: OSError", 503, None, "no server can take the request now"),
        ("INTERNAL: the codec failed: RuntimeError", 500, None, FAILED),
        ("Request for unknown model: 'qwen3_tts' is not found", 500, None, FAILED),
        ("Request for unknown model: 'q' has no available versions", 503, None, "no server can take the request now"),
    ],
)
def test_an_error_of_the_server_becomes_a_status(
    client: httpx.Client, message: str, status: int, param: str | None, text: str
) -> None:
    response = speak(client, script(error=message))
    assert (response.status_code, error_of(response)["param"]) == (status, param)
    assert error_of(response)["message"] == text
    assert ("retry-after" in response.headers) == (status in (429, 503))


@pytest.mark.parametrize("failure", [{"error": "INTERNAL: broken"}, {"close": True}])
def test_a_failure_after_the_first_byte_aborts_the_transfer(client: httpx.Client, failure: dict[str, object]) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        speak(client, script(chunks=[[0, 1]], **failure))


def test_each_version_of_http_tells_an_aborted_transfer_from_a_complete_one(gateway: RunningGateway) -> None:
    broken = script(chunks=[[0, 1]], error="INTERNAL: broken")
    with pytest.raises(ConnectionResetError):
        answer_of(gateway, "1.0", text=broken)
    assert answer_of(gateway, "1.0", text=script(error="INTERNAL: broken")).startswith(b"HTTP/1.1 500 ")
    last_chunk = b"\r\n0\r\n\r\n"
    assert not answer_of(gateway, "1.1", "Connection: close", text=broken).endswith(last_chunk)
    assert answer_of(gateway, "1.1", "Connection: close").endswith(last_chunk)


def test_a_failure_after_the_first_event_is_an_event(client: httpx.Client) -> None:
    response = speak(client, script(chunks=[[0, 1]], error="INTERNAL: broken"), stream_format="sse")
    last = json.loads(response.text.strip().splitlines()[-1].removeprefix("data: "))
    assert (last["type"], last["error"]["message"]) == ("speech.audio.error", FAILED)


@pytest.mark.parametrize("chunks", [[[0, 1]], []], ids=["in the middle", "before the first audio"])
def test_a_disconnect_cancels_the_stream(gateway: RunningGateway, stub: StubServer, chunks: list[list[int]]) -> None:
    before, received = stub.servicer.cancelled, len(stub.servicer.received)
    text = script(chunks=chunks, hang=True)
    with post(gateway, {"input": text, "response_format": "pcm"}) as connection:
        wait_for(lambda: len(stub.servicer.received) > received)
        if chunks:
            assert connection.recv(4096)
    wait_for(lambda: stub.servicer.cancelled > before)
    wait_for(lambda: gateway.services.backend.streams == 0)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[" * 100_000, 400), (b"\xff", 400), (b"[]", 400), (b'{"input": "\\ud800"}', 400)],
)
def test_a_body_that_is_no_object_is_refused(client: httpx.Client, body: bytes, status: int) -> None:
    response = client.post(PATH, content=body)
    assert response.status_code == status
    assert "SpeechBody" not in response.text


def test_an_unknown_path_or_method_has_an_openai_error(client: httpx.Client) -> None:
    for response, status in ((client.get("/v1/nothing"), 404), (client.get(PATH), 405)):
        assert response.status_code == status
        assert set(error_of(response)) == {"message", "type", "param", "code"}
    assert error_of(client.get(PATH))["type"] == "invalid_request_error"


def test_a_crash_of_the_gateway_has_an_openai_error(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.services.models, "listing", None)
    response = httpx.get(gateway.url + "/v1/models")
    assert (response.status_code, error_of(response)["type"]) == (500, "server_error")
    assert "TypeError" not in response.text


def test_an_address_of_a_server_is_not_told() -> None:
    with RunningGateway("localhost:1") as gateway:
        for path, body in ((PATH, {"input": "a"}), ("/v1/audio/speech/batch", {"items": [{"input": "a"}]})):
            response = httpx.post(gateway.url + path, json=body)
            assert "no server is reachable" in response.text
            assert not re.search("localhost|127|::1|UNAVAILABLE|connect to", response.text)


def test_a_large_body_is_refused(stub: StubServer) -> None:
    with RunningGateway(stub.url, max_body_bytes=1000) as gateway:
        assert httpx.post(gateway.url + PATH, json={"input": "x" * 2000}).status_code == 413
        assert httpx.post(gateway.url + "/v1/audio/voices", files={"audio_sample": b"x" * 2000}).status_code == 413


def test_silence_is_a_valid_file(client: httpx.Client) -> None:
    assert len(speak(client, script(), response_format="wav").content) == 44
    assert speak(client, script(), response_format="mp3").status_code == 200


def test_a_body_that_stops_coming_is_refused(stub: StubServer) -> None:
    with RunningGateway(stub.url, chunk_seconds=0.2) as gateway, socket.socket() as connection:
        connection.connect(("127.0.0.1", int(gateway.address.split(":")[1])))
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_trace_that_is_no_metadata_is_dropped(client: httpx.Client) -> None:
    headers = {b"traceparent": "a b\u00e9".encode("latin-1")}
    assert client.post(PATH, json={"input": TWO_CHUNKS}, headers=headers).status_code == 200
