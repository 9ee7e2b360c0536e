"""The table of a run: every column shows its own figure of the summary."""

from qwen3_tts_client.analysis.playback import MS, NS
from qwen3_tts_client.analysis.summary import summarise
from qwen3_tts_client.analysis.table import COLUMNS, cells
from qwen3_tts_client.records.record import ClientRecord, LoadRecord, Run
from qwen3_tts_client.records.timeline import Timeline
from tests.unit.client.test_summary import FRAME, request


def test_every_column_shows_its_own_figure() -> None:
    """A stream written 1 ms late, audible 5 ms into its audio, with two chunks 30 ms late; and a refused request."""
    arrivals = [22 * MS, 132 * MS, 242 * MS]
    spoken = Timeline(2 * MS, 1 * MS, arrivals, [FRAME] * 3, 24_000, 120, 243 * MS, "ok", withheld_samples=1200)
    refused = Timeline(2 * MS, 1 * MS, end_ns=5 * MS, outcome="unavailable", error="full")
    requests, client = [request(0, spoken), request(1, refused)], ClientRecord(0, 0, 0.25, {"p99": 7.5})
    [row] = summarise(Run({}, [LoadRecord(0, "open", 12.5, 0, NS, NS)], requests, [client]))
    assert dict(zip(COLUMNS, cells(row), strict=True)) == {
        "load": "12.5/s",
        "requests": "2",
        "failed": "1",
        "TTFA p50/p95 ms": "21.0 / 21.0",
        "audible p50/p95 ms": "26.0 / 26.0",
        "silence ms": "50",
        "chunk ms": "80",
        "E2E p50 s": "0.24",
        "RTF p50": "1.004",
        "audio-s/s": "0.2",
        "stall p95 ms": "30.0",
        "C50 %": "100.0",
        "C50 nr %": "0.0",
        "late p99 ms": "1.0",
        "lag p99 ms": "7.5",
        "cpu": "0.25",
    }
