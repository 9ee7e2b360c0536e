"""What the gateway adds to the first audio, beside gRPC in one run."""

import json
from pathlib import Path

import pytest

from scripts.benchmarks import gateway
from tests.fakes.stub_server import StubServer

pytestmark = pytest.mark.long

# A listener never waits for the second chunk.
TEXT = json.dumps({"chunks": [[10, 1], [40, 2], [100, 4]], "exact": False})
ADDED_MS = {"pcm": 3.0, "mp3": 10.0, "opus": 10.0}


@pytest.mark.timing
def test_the_gateway_adds_little_to_the_first_audio(tmp_path: Path) -> None:
    added = first_audio_ms(tmp_path)
    assert {name: ms for name, ms in added.items() if ms > ADDED_MS[name]} == {}


def first_audio_ms(folder: Path) -> dict[str, float]:
    """What the gateway adds to the first audio of gRPC, by format, at the p50 of one stream."""
    record = folder / "record.json"
    with StubServer() as stub:
        gateway.main(folder, stub.url, "1", 1, 15, "vivian", 71, TEXT, record)
    rows = json.loads(record.read_text())["rows"]
    assert [row["failed"] for row in rows] == [0] * len(rows)
    alone, *formats = (row["ttfa_p50_ms"] for row in rows)
    return {row["format"]: round(ttfa - alone, 2) for row, ttfa in zip(rows[1:], formats, strict=True)}
