"""Measurements on disk: JSON lines, one file per run, readable up to an interruption."""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.records.timeline import Timeline

SCHEMA_VERSION = 1
# A burst is a closed loop in which every stream has one request; "first" is the first request to a server.
MODES = ("closed", "open", "burst", "first")
FILE_NAME = "records.jsonl"


@dataclass(frozen=True)
class RequestRecord:
    load: int  # id of its load
    index: int  # position in the load
    phase: str  # "warmup" or "measure"
    worker: int
    prompt: str
    language: str | None
    text_chars: int
    timeline: Timeline


@dataclass(frozen=True)
class LoadRecord:
    """One point of a sweep and its measurement window.

    Written at the start, with the planned window and an end_ns of 0, and again at the end: the last one counts.
    """

    id: int
    mode: str  # one of MODES
    value: float  # concurrency, requests at once, or requests per second
    start_ns: int
    stop_ns: int  # no request was sent from here on
    end_ns: int  # the last stream ended
    interrupted: bool = False


@dataclass(frozen=True)
class ClientRecord:
    """Overhead of one worker process of this client during one load."""

    load: int
    worker: int
    cpu_share: float  # of one core
    loop_lag_ms: dict[str, float]  # p50, p99, max


@dataclass(frozen=True)
class ScrapeRecord:
    """The server's metrics at one moment: sample name with labels to value."""

    load: int
    moment: str  # "before", "during" (gauges only) or "after"
    at_ns: int
    samples: dict[str, float]


@dataclass(frozen=True)
class Run:
    header: dict[str, Any]
    loads: list[LoadRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    clients: list[ClientRecord] = field(default_factory=list)
    scrapes: list[ScrapeRecord] = field(default_factory=list)

    def scraped(self, load: LoadRecord) -> tuple[dict[str, float], dict[str, float]]:
        """The server's metrics before and after a load; empty if not scraped."""
        samples = {scrape.moment: scrape.samples for scrape in self.scrapes if scrape.load == load.id}
        return samples.get("before", {}), samples.get("after", {})


Record = RequestRecord | LoadRecord | ClientRecord | ScrapeRecord
_KINDS: dict[str, type[Record]] = {
    "request": RequestRecord,
    "load": LoadRecord,
    "client": ClientRecord,
    "scrape": ScrapeRecord,
}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


class RecordWriter:
    """Appends whole lines; several processes may append to one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def header(self, fields: dict[str, Any]) -> None:
        self._write({"kind": "run", "schema_version": SCHEMA_VERSION, **fields})

    def append(self, record: Record) -> None:
        # vars: asdict would copy every list of a timeline.
        self._write({"kind": _NAMES[type(record)], **vars(record)})

    def _write(self, line: dict[str, Any]) -> None:
        # One write per line: O_APPEND keeps lines of concurrent processes intact, and a crash loses no finished write.
        data = json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=vars).encode() + b"\n"
        while data:
            data = data[os.write(self._file, data) :]


def read_run(path: Path) -> Run:
    """Reads a record file, or the one in a folder. Raises ClientError for anything else or another schema."""
    file = path / FILE_NAME if path.is_dir() else path
    try:
        lines = file.read_bytes().split(b"\n")[:-1]  # anything after the last newline is a partial write
    except OSError as error:
        raise ClientError(f"{file}: {error.strerror}") from None
    run = Run(_header(file, lines[0] if lines else b""))
    for number, line in enumerate(lines[1:], 2):
        try:
            _add(run, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ClientError(f"{file}:{number}: not a record of schema version {SCHEMA_VERSION}: {error}") from None
    run.loads[:] = [load if load.end_ns else _close_interrupted(load, run.requests) for load in run.loads]
    return run


def _close_interrupted(load: LoadRecord, requests: list[RequestRecord]) -> LoadRecord:
    """Ends a load without a recorded end at its last request."""
    end_ns = max((r.timeline.end_ns for r in requests if r.load == load.id), default=load.start_ns + 1)
    stop_ns = min(load.stop_ns or end_ns, end_ns)
    return replace(load, start_ns=min(load.start_ns, stop_ns - 1), stop_ns=stop_ns, end_ns=end_ns, interrupted=True)


def _header(file: Path, line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
        version = header["schema_version"]
    except (ValueError, KeyError, TypeError):
        raise ClientError(f"{file}: the first line is not the header of a benchmark record") from None
    if version != SCHEMA_VERSION:
        raise ClientError(
            f"{file}: schema version {version}, but this client reads version {SCHEMA_VERSION}: "
            f"use the client of commit {header.get('commit', 'unknown')}"
        )
    return dict(header)


def _add(run: Run, fields: dict[str, Any]) -> None:
    if "timeline" in fields:
        fields["timeline"] = Timeline(**fields["timeline"])
    match _KINDS[fields.pop("kind")](**fields):
        case RequestRecord() as request:
            run.requests.append(request)
        case LoadRecord() as load:
            run.loads[:] = [other for other in run.loads if other.id != load.id] + [load]
        case ClientRecord() as client:
            run.clients.append(client)
        case ScrapeRecord() as scrape:
            run.scrapes.append(scrape)
