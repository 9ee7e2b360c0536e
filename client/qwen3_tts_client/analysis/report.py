"""`qwen3-tts report`: renders a record as a self-contained HTML page and a table."""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from qwen3_tts_client import options
from qwen3_tts_client.analysis import metrics
from qwen3_tts_client.analysis.playback import MS, NS, Playback
from qwen3_tts_client.analysis.summary import summarise
from qwen3_tts_client.analysis.table import COLUMNS, cells, load_name, text_table
from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.records.prometheus import quantile_between, total
from qwen3_tts_client.records.record import Run, read_run
from qwen3_tts_client.records.timeline import Timeline

WORST_STREAMS = 12
# Server histograms whose quantiles are shown, in pipeline order.
SERVER_TIMES = {
    "admission wait": "qwen3_tts_admission_wait_seconds",
    "prefill": "qwen3_tts_prefill_seconds",
    "tick": "qwen3_tts_step_duration_seconds",
    "chunk wait": "qwen3_tts_chunk_wait_seconds",
    "codec": "qwen3_tts_codec_seconds",
    "send": "qwen3_tts_send_seconds",
}
SERVER_GAUGES = {"running": "qwen3_tts_requests_running", "waiting": "qwen3_tts_requests_waiting"}
WAVE_COLUMNS = ("TTFA p50/p95 ms", "audible p50/p95 ms", "stall p95 ms", "C50 %")
_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --band: #f5f5f5; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16161a; --band: #24242a; --bad: #ffb4ab } }
body { font: 14px system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em;
  color: var(--ink); background: var(--paper) }
h1 { overflow-wrap: anywhere }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: 12px; white-space: nowrap }
th, td { padding: 3px 8px; text-align: right } th { border-bottom: 1px solid #888 }
tr:nth-child(even) { background: var(--band) }
.bad { color: var(--bad); font-weight: 600 }
svg { max-width: max(100%, 30em); height: auto }
pre { background: var(--band); padding: 1em; overflow: auto; font-size: 12px }
"""
_NOTES = """RTF is wall / audio: below 1 is faster than real time. A stall is the lateness of a chunk for a player that
starts at the first chunk and rebuffers when empty; C50 is the share of multi-chunk streams whose largest stall is at
most 50 ms. "nr" is the same for a player that never rebuffers. Failed requests are counted, never dropped; latencies
cover successful requests only. In an open loop, times count from a request's due time."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", type=Path, help="bench folder or record file")
    parser.add_argument("--output", type=Path, metavar="FILE.html", help="default report.html beside the record")
    options.add_playback_options(parser)


def run(args: argparse.Namespace) -> ExitCode:
    record = read_run(args.record)
    prebuffer_ns = round(args.prebuffer_ms * MS)
    rows = summarise(record, prebuffer_ns)
    print(text_table(rows))
    folder = args.record if args.record.is_dir() else args.record.parent
    output = args.output or folder / "report.html"
    try:
        output.write_text(page(record, rows, prebuffer_ns), encoding="utf-8")
    except OSError as error:
        raise ClientError(f"--output {output}: {error.strerror}") from None
    print(f"page written to {output}")
    return ExitCode.OK


def page(run: Run, rows: Sequence[dict[str, Any]], prebuffer_ns: int) -> str:
    target = run.header.get("target", {})
    title = f"{target.get('server', target.get('url', 'server'))}, {run.header.get('time', '')}"
    sections = chain(
        [_failures(rows)],
        [_section("Figures", f"<p>{_NOTES}</p>{_table(list(COLUMNS), map(cells, rows))}")],
        _plots(run, rows, prebuffer_ns),
        [_section("First and later waves", _waves(rows))],
        [_section("Environment", f"<pre>{escape(json.dumps(run.header, indent=1, ensure_ascii=False))}</pre>")],
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1>{''.join(sections)}</html>\n"
    )


def _failures(rows: Sequence[dict[str, Any]]) -> str:
    """Requests that failed, by load and outcome."""
    failed = [
        [load_name(row["mode"], row["value"]), outcome, f"{count} of {row['requests']}"]
        for row in rows
        for outcome, count in row["outcomes"].items()
        if outcome != "ok"
    ]
    if not failed:
        return f"<p>None of {sum(row['requests'] for row in rows)} requests failed.</p>"
    return f'<p class="bad">Requests failed:</p>{_table(["load", "outcome", "requests"], failed)}'


def _plots(run: Run, rows: Sequence[dict[str, Any]], prebuffer_ns: int) -> Iterator[str]:
    try:
        from qwen3_tts_client.analysis import plots  # matplotlib, an extra
    except ImportError:
        raise ClientError("the page requires matplotlib: pip install 'qwen3-tts-triton[report]'") from None
    yield _plot("Time to first audio", plots.first_audio(rows))
    yield _plot("Underrun and continuity", plots.continuity(rows))
    yield _plot("Throughput", plots.throughput(rows))
    if worst := worst_streams(run, prebuffer_ns):
        yield _plot("Playback of the worst streams", plots.playback_timeline(worst))
    if times := server_times(run):
        yield _plot("Inside the server", plots.server_times(rows, times))
    if gauges := server_gauges(run):
        yield _plot("Streams in the server", plots.over_time(gauges))


def worst_streams(run: Run, prebuffer_ns: int) -> list[tuple[str, Timeline, Playback]]:
    """Name, timeline and playback of the measured streams with the longest stalls."""
    names = {load.id: load_name(load.mode, load.value) for load in run.loads}
    played = [
        (
            f"{names[record.load]}, request {record.index}",
            record.timeline,
            metrics.played(record.timeline, prebuffer_ns),
        )
        for record in run.requests
        if record.phase == "measure" and record.timeline.samples and record.load in names
    ]
    return sorted(played, key=lambda stream: -stream[2].largest_stall_ns)[:WORST_STREAMS]


def server_times(run: Run) -> dict[str, list[tuple[float | None, float | None]]]:
    """p50 and p95 in ms during each load, of each of SERVER_TIMES that the server exports."""
    scraped = [run.scraped(load) for load in run.loads]
    times = {
        label: [
            (_ms(quantile_between(before, after, name, 0.5)), _ms(quantile_between(before, after, name, 0.95)))
            for before, after in scraped
        ]
        for label, name in SERVER_TIMES.items()
    }
    return {label: points for label, points in times.items() if any(point != (None, None) for point in points)}


def server_gauges(run: Run) -> dict[str, list[tuple[float, float]]]:
    """(seconds since the first scrape, value) of each of SERVER_GAUGES that the server exports."""
    gauges: dict[str, list[tuple[float, float]]] = {}
    for scrape in run.scrapes:
        for label, name in SERVER_GAUGES.items():
            if (value := total(scrape.samples, name)) is not None:
                gauges.setdefault(label, []).append(((scrape.at_ns - run.scrapes[0].at_ns) / NS, value))
    return gauges


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _waves(rows: Sequence[dict[str, Any]]) -> str:
    names = ["load", "wave", "streams", *WAVE_COLUMNS]
    lines = [
        [cells(row)[0], wave, str(row[key]["streams"]), *(COLUMNS[name](row | row[key]) for name in WAVE_COLUMNS)]
        for row in rows
        for wave, key in (("first", "first_wave"), ("later", "later_waves"))
    ]
    return _table(names, lines)


def _plot(title: str, svg: str) -> str:
    return _section(title, f'<div class="scroll">{svg}</div>')


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}"


def _table(names: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
