"""Requests over HTTP through Triton's generate_stream endpoint."""

import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest

from scripts.server.tritonserver import TritonServer


def generate_stream(server: TritonServer, fields: dict[str, Any]) -> list[dict[str, Any]]:
    url = f"http://localhost:{server.ports.http}/v2/models/qwen3_tts/generate_stream"
    request = urllib.request.Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = response.read().decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_each_server_sent_event_carries_a_chunk(scripted: TritonServer) -> None:
    *events, last = generate_stream(scripted, {"text": "Hello.", "speaker": "ryan", "seed": 4, "max_frames": 9})
    assert (last["finish_reason"], last["usage"][0]) == ("length", 9)
    assert len(events) > 1
    assert [event.get("sample_rate") for event in events] == [24000] + [None] * (len(events) - 1)
    frames = np.concatenate([event["waveform"] for event in events]).reshape(-1, 1920)
    assert frames[:, :2].tolist() == [[4, number] for number in range(9)]


def test_language_codes_and_minus_one_are_accepted(scripted: TritonServer) -> None:
    fields = {"text": "Hello.", "speaker": "RYAN", "language": "en-US", "seed": -1, "top_k": -1, "max_frames": 2}
    assert generate_stream(scripted, fields)[-1]["finish_reason"] == "length"


def test_lists_the_speakers_of_the_checkpoint(scripted: TritonServer) -> None:
    [event] = generate_stream(scripted, {"operation": "list_speakers"})
    speakers = [json.loads(speaker) for speaker in event["voices"]]
    assert {"name": "eric", "dialect": "sichuan_dialect"} in speakers
    assert len(speakers) == 9


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": "Hello.", "speaker": "nobody"}, "INVALID_ARG: speaker: 'nobody': unknown: choose one of aiden"),
        ({"speaker": "ryan"}, "INVALID_ARG: text: None: Field required"),
    ],
)
def test_invalid_request_returns_400_with_the_error(
    scripted: TritonServer, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        generate_stream(scripted, fields)
    assert refused.value.code == 400
    assert message in json.loads(refused.value.read().decode().removeprefix("data: "))["error"]
