"""The progress line of a benchmark."""

import io
import time
from pathlib import Path

import pytest

from qwen3_tts_client.bench.load import Phase
from qwen3_tts_client.bench.progress import Progress
from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.records.record import RecordWriter, RequestRecord
from qwen3_tts_client.records.timeline import TimelineRecorder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def phase(requests: int | None, stop_ns: int | None = None) -> Phase:
    return Phase(0, "measure", "closed", 8, 0, 0, requests, stop_ns, "seed")


def record(outcome: str) -> RequestRecord:
    recorder = TimelineRecorder()
    recorder.finish(SpeechError(outcome, "full"))
    return RequestRecord(0, 0, "measure", 0, "prompt", None, 5, recorder.stop())


def test_counts_requests_and_failures_as_they_are_recorded(tmp_path: Path) -> None:
    terminal = Terminal()
    records = tmp_path / "records.jsonl"
    writer = RecordWriter(records)
    writer.append(record("ok"))  # of the phase before
    with Progress(records, "c=8", phase(40), terminal) as progress:
        progress.update()
        assert str(progress) == "c=8 measure: 0 of 40 requests"
        writer.append(record("ok"))
        with records.open("ab") as file:
            file.write(b'{"kind":"request"')  # still being written
        progress.update()
        assert str(progress) == "c=8 measure: 1 of 40 requests"
        with records.open("ab") as file:
            file.write(b',"outcome":"timeout"}\n')
        writer.append(record("unavailable"))
        progress.update()
        assert str(progress) == "c=8 measure: 3 of 40 requests, 2 failed"
    assert "2 failed" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K"), "the line is left behind"


def test_a_load_of_a_duration_shows_the_time_left(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    RecordWriter(records)
    with Progress(records, "10/s", phase(None, time.perf_counter_ns() + 9_400_000_000), Terminal()) as progress:
        assert str(progress) == "10/s measure: 0 requests, 9 s left"
    with Progress(records, "10/s", phase(None, time.perf_counter_ns()), Terminal()) as progress:
        assert str(progress) == "10/s measure: 0 requests, last streams end"


def test_a_log_file_gets_no_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = tmp_path / "records.jsonl"
    RecordWriter(records)
    with Progress(records, "c=8", phase(40)) as progress:
        progress.update()
    assert capsys.readouterr().err == ""
