"""Servers needed for a number of listeners, from the measured loads of one server.

A listener plays one second of audio a second, so a server that makes N seconds of audio a second feeds N listeners.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qwen3_tts_client.capacity.serving_record import CLOSED, OPEN, Row, ServingRecord
from qwen3_tts_client.errors import ClientError

# Rounding of a quotient: 3 × 100.1 listeners fit on three servers of 100.1.
_ROUNDING = 1e-9
_NAMES = {CLOSED: "closed loop", OPEN: "open loop"}


@dataclass(frozen=True)
class Limit:
    """The largest good load of one server."""

    wish_ms: float
    """The largest p95 of a good load."""
    listeners: float
    rows: tuple[Row, ...]
    """The good rows by increasing load, and the one that follows them if there is one."""
    good: Row
    bad: Row | None
    """The first row that misses the wish; None if the record has none."""

    @classmethod
    def of(cls, rows: Sequence[Row], p95_ms: float) -> "Limit | None":
        """The limit in rows of one mode by increasing load; None if the first one is not good.

        Between the last good row and the next the load is interpolated to the p95, provided that the next one has no
        stalls and errors: where these begin is unknown.
        """
        good = list(itertools.takewhile(lambda row: row.is_good(p95_ms), rows))
        if not good:
            return None
        last, bad = good[-1], rows[len(good)] if len(good) < len(rows) else None
        # More callers may get less audio.
        listeners = max(row.audio_rate for row in good)
        if bad and bad.is_clean:
            share = (p95_ms - last.p95_ms) / (bad.p95_ms - last.p95_ms)
            listeners = max(listeners, last.audio_rate + share * (bad.audio_rate - last.audio_rate))
        return cls(p95_ms, listeners, tuple(good) + ((bad,) if bad else ()), last, bad)

    def p95_ms(self, listeners: float) -> float:
        """Expected at a load up to `self.listeners`; below the first row, that row's."""
        known = sorted((row for row in self.rows if row.is_clean), key=lambda row: row.audio_rate)
        # A larger load with a shorter time is noise.
        times = np.maximum.accumulate([row.p95_ms for row in known])
        # A bad row may have no more audio than a good one.
        return min(float(np.interp(listeners, [row.audio_rate for row in known], times)), self.wish_ms)

    def __str__(self) -> str:
        if self.bad is None:
            return f"the largest {_NAMES[self.good.mode]} of the record, {self.good}; it may bear more: measure it"
        if self.bad.is_clean and self.listeners > self.good.audio_rate:
            return f"interpolated between {self.good} and {self.bad}"
        return f"{self.good}, the last load before {self.bad}"


@dataclass(frozen=True)
class Plan:
    listeners: int
    needed: int
    spare: int
    limit: Limit

    @property
    def servers(self) -> int:
        return self.needed + self.spare

    def listeners_per_server(self, lost: int = 0) -> float:
        return self.listeners / (self.servers - lost)

    def p95_ms(self, lost: int = 0) -> float:
        """Expected with all servers, or without those lost, at an even load."""
        return self.limit.p95_ms(self.listeners_per_server(lost))


def limit_of(record: ServingRecord, p95_ms: float, mode: str | None = None) -> Limit:
    """The limit in the rows of a mode. Without a mode: open loops, as listeners arrive at random, unless none is good,
    or the record ends before they find their limit and closed loops carry more. Raises ClientError without any good
    row."""
    found = {one: Limit.of(record.of(one), p95_ms) for one in ([mode] if mode else [OPEN, CLOSED])}
    limits = [limit for limit in found.values() if limit]
    if not limits:
        raise ClientError(_impossible(record, p95_ms, list(found)))
    first, *others = limits
    if others and first.bad is None:
        return max(limits, key=lambda limit: limit.listeners)
    return first


def plan(listeners: int, limit: Limit, spare: int = 0) -> Plan:
    return Plan(listeners, max(1, math.ceil(listeners / limit.listeners - _ROUNDING)), spare, limit)


def _impossible(record: ServingRecord, p95_ms: float, modes: Sequence[str]) -> str:
    """Names what the record has."""
    sweeps = [rows for mode in modes if (rows := record.of(mode))]
    if not sweeps:
        return f"--record {record.file}: no {' or '.join(_NAMES[mode] for mode in modes)}"
    smallest = ", ".join(str(rows[0]) for rows in sweeps)
    clean = [row for rows in sweeps for row in rows if row.is_clean]
    lowest = f"; its lowest p95: {min(clean, key=lambda row: row.p95_ms)}" if clean else ""
    wish = f"p95 {p95_ms:g} ms without stalls and errors"
    return f"--record {record.file}: even the smallest load misses {wish}: {smallest}{lowest}"
