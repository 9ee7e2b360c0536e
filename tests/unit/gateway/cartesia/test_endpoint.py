"""POST /tts/bytes before a stub server."""

from typing import Any

import httpx
import pytest

from tests.fakes.stub_server import StubServer, input_text
from tests.unit.gateway.cartesia.test_socket import OPTIONS
from tests.unit.gateway.conftest import script
from tests.unit.gateway.test_speech import TWO_CHUNKS, error_of

BODY = {name: value for name, value in OPTIONS.items() if name != "add_timestamps"}


def test_a_transcript_becomes_pcm(client: httpx.Client, stub: StubServer) -> None:
    response = client.post("/tts/bytes", json=BODY | {"transcript": TWO_CHUNKS})
    assert (response.headers["content-type"], len(response.content)) == ("audio/pcm", 3 * 1920 * 2)
    assert input_text(stub.servicer.received[-1], "speaker") == "ryan"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"transcript": ""}, "transcript"),
        ({"transcript": script(error="INVALID_ARG: text: 'x': wrong")}, "transcript"),
        ({"output_format": {"container": "wav"}}, "output_format.container"),
        ({"add_timestamps": True}, "add_timestamps"),
        ({"transcript": "x" * 4097}, "transcript"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = client.post("/tts/bytes", json=BODY | {"transcript": TWO_CHUNKS} | fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
