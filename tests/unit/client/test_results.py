"""What `bench` prints at the end of a run."""

from pathlib import Path

import pytest

from qwen3_tts_client.analysis.playback import NS
from qwen3_tts_client.analysis.results import conclude, open_records
from qwen3_tts_client.errors import ExitCode
from qwen3_tts_client.records.record import FILE_NAME, LoadRecord
from qwen3_tts_client.records.timeline import Timeline
from tests.unit.client.test_summary import request


@pytest.mark.parametrize(("verbose", "shown"), [(False, 4), (True, 6)])
def test_the_most_frequent_failures_are_printed_first_and_all_only_if_verbose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verbose: bool, shown: int
) -> None:
    counts = {f"reason {count}": count for count in range(1, 7)}
    reasons = [reason for reason, count in counts.items() for _ in range(count)]
    writer = open_records(tmp_path / "run" / FILE_NAME, {})
    writer.append(LoadRecord(0, "closed", 1, 0, NS, NS))
    for index, reason in enumerate(reasons):
        writer.append(request(index, Timeline(0, None, end_ns=1, outcome="error", error=reason)))
    for index in range(9):
        writer.append(request(100 + index, Timeline(0, None, end_ns=1, outcome="ok", error=None)))
    assert conclude(tmp_path / "run", 0, verbose) is ExitCode.PARTIAL
    printed = capsys.readouterr().err.splitlines()
    assert printed[:-1] == [f"{count} x error: reason {count}" for count in range(6, 6 - shown, -1)]
