import json
from pathlib import Path
from typing import Any

import pytest

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.analysis.perf_analyzer import read_export
from qwen3_tts_client.analysis.summary import summarise
from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.records.record import LoadRecord, RequestRecord, read_run

MS = 1_000_000
START = 1_795_223_589_799_242_523  # perf_analyzer's timestamps are nanoseconds since 1970


def request(sent_ms: int, *arrivals_ms: int) -> dict[str, Any]:
    """A stream of 80 ms chunks and an empty final response, which the export stores as a scalar, not a list."""
    first = {"waveform": [3000, -3000] * 960, "sample_rate": 24_000}
    rest = [{"waveform": [3000, -3000] * 960} for _ in arrivals_ms[1:]]
    return {
        "timestamp": START + sent_ms * MS,
        "request_inputs": {"text": "hello", "language": "english"},
        "response_timestamps": [START + at * MS for at in (*arrivals_ms, arrivals_ms[-1] + 1)],
        "response_outputs": [first, *rest, {"waveform": -23006, "sample_rate": 0}],
    }


def experiment(mode: str, value: float, *requests: dict[str, Any]) -> dict[str, Any]:
    windows = [START, START + 500 * MS, START + 1000 * MS]
    return {"experiment": {"mode": mode, "value": value}, "requests": list(requests), "window_boundaries": windows}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    experiments = [
        experiment("concurrency", 2, request(0, 30, 200, 250), request(1, 41)),
        experiment("request_rate", 1.5, request(5, 25)),
    ]
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"experiments": experiments, "version": "2.51.0", "service_kind": "triton"}))
    return file


def test_converts_an_export_to_records(export: Path) -> None:
    records = list(read_export(export))
    assert [record for record in records if isinstance(record, LoadRecord)] == [
        LoadRecord(0, "closed", 2, START, START + 1000 * MS, START + 1000 * MS),
        LoadRecord(1, "open", 1.5, START, START + 1000 * MS, START + 1000 * MS),
    ]
    first = next(record for record in records if isinstance(record, RequestRecord))
    assert (first.language, first.text_chars) == ("english", 5)
    assert first.timeline.samples == [1920] * 3
    assert first.timeline.arrivals_ns == [START + at * MS for at in (30, 200, 250)]
    assert first.timeline.onset_sample == 0


def test_summarises_an_imported_export(export: Path, tmp_path: Path) -> None:
    assert main(["import", str(export), "--artifact-dir", str(tmp_path / "run")]) == ExitCode.OK
    closed, opened = summarise(read_run(tmp_path / "run"))
    assert (closed["mode"], closed["value"], closed["outcomes"]) == ("closed", 2, {"ok": 2})
    assert closed["ttfa_ms"]["p50"] == 30
    assert closed["ttfa_ms"]["max"] == 40
    # The second chunk is due at 110 ms and arrives at 200 ms.
    assert closed["rebuffering"]["largest_stall_ms"]["max"] == 90
    assert closed["audio_throughput"] == pytest.approx(0.32)
    assert (opened["mode"], opened["value"], opened["ttfa_ms"]["p50"]) == ("open", 1.5, 20)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"experiments": [{}]}', '{"experiments": [{"experiment": 3}]}'])
def test_rejects_a_file_that_is_not_an_export(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(ClientError, match=r"a\.json: not a profile export"):
        list(read_export(file))
    with pytest.raises(ClientError, match="No such file"):
        list(read_export(tmp_path / "none"))
