"""The artifact folder of a run."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qwen3_tts_client.analysis.playback import MS
from qwen3_tts_client.analysis.summary import summarise
from qwen3_tts_client.analysis.table import text_table
from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.records.record import RecordWriter, Run, read_run

SUMMARY_NAME = "summary.json"
FAILURES_SHOWN = 4
# Above these the client itself distorts the figures.
LAG_LIMIT_MS = 20.0
CPU_LIMIT = 0.8


def open_records(path: Path, header: dict[str, Any]) -> RecordWriter:
    """Creates a record file. Raises ClientError if it cannot be created or already exists."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(f"--artifact-dir {path.parent}: {error.strerror}") from None
    if path.exists():
        raise ClientError(f"--artifact-dir {path.parent}: already holds a record; choose another folder")
    writer = RecordWriter(path)
    writer.header(header)
    return writer


def conclude(folder: Path, prebuffer_ms: float, verbose: bool = False) -> ExitCode:
    """Writes summary.json; prints the table, failure reasons, and distortions by the client."""
    run = read_run(folder)
    if not run.loads:
        return ExitCode.REQUEST
    rows = summarise(run, round(prebuffer_ms * MS))
    (folder / SUMMARY_NAME).write_text(json.dumps({**run.header, "loads": rows}, indent=1, ensure_ascii=False) + "\n")
    print(text_table(rows))
    for line in (*failures(run, None if verbose else FAILURES_SHOWN), *distortions(run), f"records in {folder}"):
        print(line, file=sys.stderr)
    return _exit_code(sum((Counter(row["outcomes"]) for row in rows), Counter()))


def _exit_code(outcomes: Counter[str]) -> ExitCode:
    if not outcomes["ok"]:
        return ExitCode.REQUEST
    return ExitCode.OK if outcomes["ok"] == outcomes.total() else ExitCode.PARTIAL


def failures(run: Run, limit: int | None) -> Iterator[str]:
    """Counts of failed requests by reason, the most frequent first."""
    ended = (record.timeline for record in run.requests)
    reasons = Counter((timeline.outcome, timeline.error) for timeline in ended if timeline.outcome != "ok")
    for (outcome, error), number in reasons.most_common(limit):
        yield f"{number} x {outcome}: {error or 'cancelled by this client'}"


def distortions(run: Run) -> Iterator[str]:
    values = {load.id: load.value for load in run.loads}
    for client in run.clients:
        if client.loop_lag_ms["p99"] > LAG_LIMIT_MS or client.cpu_share > CPU_LIMIT:
            yield (
                f"warning: at {values[client.load]:g} the client itself was slow (loop lag p99 "
                f"{client.loop_lag_ms['p99']:.1f} ms, {client.cpu_share:.0%} of a core): use more --workers"
            )
