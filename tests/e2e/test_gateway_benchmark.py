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
# Runs at most, until one is good: other load on the machine must not fail the test.
RUNS = 10
# The stub sends after 10 ms. Where gRPC alone takes longer than this, the machine is too busy to measure 3 ms.
QUIET_MS = 13.5


@pytest.mark.timeout(280)
def test_the_gateway_adds_little_to_the_first_audio(tmp_path: Path) -> None:
    quiet = []
    for number in range(RUNS):
        alone, added = first_audio_ms(tmp_path / str(number))
        print(f"gRPC {alone}, added {added}")
        if all(added[name] <= ADDED_MS[name] for name in ADDED_MS):
            return
        if alone <= QUIET_MS:
            quiet.append(added)
    if not quiet:
        pytest.skip("gRPC alone took too long in every run: the machine is too busy to measure")
    pytest.fail(f"the gateway added {quiet} ms")


def first_audio_ms(folder: Path) -> tuple[float, dict[str, float]]:
    """First audio of gRPC, and what the gateway adds by format, at the p50 of one stream."""
    record = folder / "record.json"
    with StubServer() as stub:
        gateway.main(folder, stub.url, "1", 1, 15, "vivian", 71, TEXT, record)
    rows = json.loads(record.read_text())["rows"]
    assert [row["failed"] for row in rows] == [0] * len(rows)
    alone, *formats = (row["ttfa_p50_ms"] for row in rows)
    return alone, {row["format"]: round(ttfa - alone, 2) for row, ttfa in zip(rows[1:], formats, strict=True)}
