"""Reads a serving record (docs/benchmarks/serving-*.json): figures of one server by load."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen3_tts_client.errors import ClientError

CLOSED, OPEN = "c", "rps"
_FORMAT = "a record of scripts.benchmarks.serving (--output FILE)"


@dataclass(frozen=True)
class Row:
    """One measured load of one server."""

    mode: str
    """CLOSED: `value` callers, each with one request at a time. OPEN: `value` Poisson requests a second."""
    value: float
    p50_ms: float
    """Median time to first audio; NaN if no request had any."""
    p95_ms: float
    audio_rate: float
    """Seconds of audio made a second."""
    stalls: int
    """Streams stalled for more than 50 ms."""
    errors: int

    @property
    def load(self) -> str:
        return f"{self.mode}={self.value:g}"

    @property
    def is_clean(self) -> bool:
        """Whether there was audio, without errors and stalls."""
        return not self.stalls and not self.errors and math.isfinite(self.p95_ms) and self.audio_rate > 0

    def is_good(self, p95_ms: float) -> bool:
        return self.is_clean and self.p95_ms <= p95_ms

    def __str__(self) -> str:
        faults = [f"{count} {name}" for count, name in ((self.stalls, "stalled"), (self.errors, "failed")) if count]
        return f"{self.load} ({', '.join([f'p95 {self.p95_ms:.1f} ms', *faults])})"


@dataclass(frozen=True)
class ServingRecord:
    file: Path
    gpu: str
    commit: str
    rows: tuple[Row, ...]

    def of(self, mode: str) -> list[Row]:
        """Rows of a mode, by increasing load."""
        return sorted((row for row in self.rows if row.mode == mode), key=lambda row: row.value)

    @property
    def audio_seconds(self) -> float | None:
        """Mean audio of a request: that made in all open loops over their requests; None without open loops."""
        rates = self.of(OPEN)
        if not rates:
            return None
        return sum(row.audio_rate for row in rates) / sum(row.value for row in rates)


def read_serving_record(file: Path) -> ServingRecord:
    """Raises ClientError for anything but a record of one server with closed or open loops."""
    try:
        fields = json.loads(file.read_bytes())
    except OSError as error:
        raise ClientError(f"--record {file}: {error.strerror}; it must be {_FORMAT}") from None
    except ValueError:
        raise ClientError(f"--record {file}: not JSON; it must be {_FORMAT}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("rows"), list):
        raise ClientError(f'--record {file}: no "rows"; it must be {_FORMAT}')
    # A search for the largest good rate is recorded beside the other loads.
    searched = fields.get("search")
    rows = tuple(_rows(file, [*fields["rows"], *(searched if isinstance(searched, list) else [])]))
    if not rows:
        raise ClientError(f'--record {file}: no row has a load "c=N" or "rps=N"; it must be {_FORMAT}')
    return ServingRecord(file, str(fields.get("gpu", "unknown")), str(fields.get("commit", "unknown")), rows)


def _rows(file: Path, rows: Sequence[Any]) -> Iterator[Row]:
    """Closed and open loops; bursts and first requests are of an idle server."""
    for number, row in enumerate(rows):
        load = row.get("load") if isinstance(row, dict) else None
        mode, separator, value = str(load).partition("=")
        if separator and mode in (CLOSED, OPEN):
            try:
                yield _row(mode, value, row)
            except (KeyError, TypeError, ValueError) as error:
                missing = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise ClientError(f"--record {file}: row {number}, load {load}: {missing}") from None


def _row(mode: str, value: str, row: dict[str, Any]) -> Row:
    if row.get("servers", 1) != 1:
        raise ValueError(f"of {row['servers']} servers; the record must be of one")
    found = Row(
        mode,
        float(value),
        _milliseconds(row["ttfa_p50_ms"]),
        _milliseconds(row["ttfa_p95_ms"]),
        float(row["audio_s_per_s"]),
        int(row["stalled_over_50ms"]),
        int(row["errors"]),
    )
    if not 0 < found.value < math.inf or not 0 <= found.audio_rate < math.inf:
        raise ValueError("the load must be above 0 and audio_s_per_s at least 0")
    return found


def _milliseconds(value: float | None) -> float:
    """NaN for a load without audio."""
    if value is not None and float(value) <= 0:
        raise ValueError(f"a time of {value} ms")
    return math.nan if value is None else float(value)
