"""scripts/locustfile.py, headless, against a stub server with scripted responses."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.stub_server import StubServer

ROOT = Path(__file__).parents[2]


def locust(server: StubServer, folder: Path, *scripts: dict[str, object]) -> tuple[int, dict[str, dict[str, str]]]:
    """Returns the exit code and the statistics by entry name."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"text": json.dumps(script)}) for script in scripts))
    command = [sys.executable, "-m", "locust", "-f", "scripts/locustfile.py", "--host", server.url, "--headless"]
    flags = ["-u", "3", "-r", "3", "-t", "3s", "--csv", str(folder / "run"), "--prompt-file", str(prompts)]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, timeout=60, check=False)
    with (folder / "run_stats.csv").open() as lines:
        return done.returncode, {line["Name"]: line for line in csv.DictReader(lines)}


@pytest.mark.timing
def test_successful_streams_report_ttfa_stalls_and_total_time(tmp_path: Path) -> None:
    with StubServer() as server:
        code, entries = locust(server, tmp_path, {"chunks": [[30, 1], [160, 2]], "silence_ms": 60})
    assert code == 0
    assert set(entries) == {"TTFA", "audible TTFA", "stalled", "E2E", "Aggregated"}
    # Three users, each request plays 0.24 s of speech, for almost three seconds.
    assert all(15 <= int(entry["Request Count"]) <= 4 * 40 for entry in entries.values())
    assert all(entry["Failure Count"] == "0" for entry in entries.values())
    for name, expected_ms in {"TTFA": 30, "audible TTFA": 80, "stalled": 50, "E2E": 160}.items():
        assert expected_ms - 10 <= float(entries[name]["Median Response Time"]) < expected_ms + 25, name


def test_failed_streams_count_as_failures(tmp_path: Path) -> None:
    with StubServer() as server:
        code, entries = locust(server, tmp_path, {"chunks": [[5, 1]], "error": "UNAVAILABLE: full"})
    assert code == 1
    assert set(entries) == {"E2E", "Aggregated"}
    assert 0 < int(entries["E2E"]["Failure Count"]) == int(entries["E2E"]["Request Count"]) < 3 * 40
