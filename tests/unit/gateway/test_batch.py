"""POST /v1/audio/speech/batch before a stub server that follows scripts."""

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest

from qwen3_tts_gateway.access import new_key
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer, input_text, text_of
from tests.unit.gateway.conftest import script, wait_for
from tests.unit.gateway.decoding import frames_of_wav
from tests.unit.gateway.test_speech import post

PATH = "/v1/audio/speech/batch"
FRAMES = 1920


def texts(count: int) -> list[str]:
    """Texts of one to `count` frames."""
    return [script(chunks=[[0, frames + 1]]) for frames in range(count)]


def batch(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_items_are_answered_in_order(client: httpx.Client) -> None:
    answer = batch(client, items=[{"input": text} for text in texts(3)])
    assert (answer["total"], answer["succeeded"], answer["failed"]) == (3, 3, 0)
    assert answer["id"].startswith("speech-batch-")
    audio = [base64.b64decode(result["audio_data"]) for result in answer["results"]]
    assert [frames_of_wav(file) for file in audio] == [FRAMES, 2 * FRAMES, 3 * FRAMES]
    first = answer["results"][0]
    assert (first["index"], first["status"], first["media_type"]) == (0, "success", "audio/wav")
    assert first["usage"]["output_tokens"] == 1


def test_fields_of_an_item_override_those_of_the_batch(client: httpx.Client, stub: StubServer) -> None:
    first, second = texts(2)
    items = [{"input": first, "speaker": "ryan", "language": None}, {"input": second, "response_format": "mp3"}]
    answer = batch(client, voice="alloy", language="en", response_format="pcm", items=items)
    assert [result["media_type"] for result in answer["results"]] == ["audio/pcm", "audio/mpeg"]
    spoken = {text_of(request): request for request in stub.servicer.received[-2:]}
    assert [input_text(spoken[text], "speaker") for text in (first, second)] == ["ryan", "serena"]
    assert {input_text(request, "language") for request in spoken.values()} == {"english"}


def test_a_failed_item_leaves_the_others(client: httpx.Client) -> None:
    items = [{"input": script(error="INVALID_ARG: speaker: 'x': unknown: choose one of aiden")}, {"input": texts(1)[0]}]
    answer = batch(client, items=items)
    assert (answer["succeeded"], answer["failed"]) == (1, 1)
    assert answer["results"][0] == {"index": 0, "status": "error", "error": "voice: 'x': unknown: choose one of aiden"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "items"),
        ({"items": []}, "items"),
        ({"items": [{"input": "a"}] * 33}, "items"),
        ({"items": [{"input": "a"}, {}]}, "items.1.input"),
        ({"items": [{"input": "a"}, {"input": "x" * 4097}]}, "items.1.input"),
        ({"items": [{"input": "a", "speed": 9}]}, "items.0.speed"),
        ({"items": [{"input": "a"}], "response_format": "opus", "sample_rate": 44100}, "sample_rate"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = client.post(PATH, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_items_beyond_the_share_of_a_key_wait(stub: StubServer, tmp_path: Path) -> None:
    key, line = new_key("anna")
    (tmp_path / "keys").write_text(f"{line} streams=1")
    with (
        RunningGateway(stub.url, keys_file=tmp_path / "keys") as gateway,
        httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        assert batch(client, items=[{"input": text} for text in texts(3)])["succeeded"] == 3
        assert httpx.post(gateway.url + PATH).status_code == 401


def test_a_disconnect_cancels_all_items(gateway: RunningGateway, stub: StubServer) -> None:
    cancelled, received = stub.servicer.cancelled, len(stub.servicer.received)
    items = [{"input": script(chunks=[], hang=True)}] * 2
    with post(gateway, {"items": items}, path=PATH):
        wait_for(lambda: len(stub.servicer.received) >= received + 2)
    wait_for(lambda: stub.servicer.cancelled >= cancelled + 2)
    wait_for(lambda: gateway.services.backend.streams == 0)
