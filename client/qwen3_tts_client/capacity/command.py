"""`qwen3-tts capacity`: servers needed for a number of listeners, from a measured record."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qwen3_tts_client.analysis.table import aligned
from qwen3_tts_client.bench.options import int_values
from qwen3_tts_client.capacity.plan import Limit, Plan, limit_of, plan
from qwen3_tts_client.capacity.serving_record import CLOSED, OPEN, ServingRecord, read_serving_record
from qwen3_tts_client.errors import ExitCode

_MODES = {"closed": CLOSED, "open": OPEN}
# Keys of a row and their titles in the table.
COLUMNS = {
    "listeners": "listeners",
    "requests_per_s": "requests/s",
    "servers": "servers",
    "spare": "of these spare",
    "listeners_per_server": "listeners each",
    "p95_ms": "p95 ms",
    "p95_ms_without_spare": "without spare",
    "price_per_hour": "price/hour",
    "price_per_listener_hour": "price/listener hour",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", type=Path, required=True, metavar="FILE.json", help="of scripts.benchmarks.serving")
    parser.add_argument(
        "--listeners", type=int_values, required=True, metavar="N,N|START:END:STEP", help="who hear speech at a time"
    )
    parser.add_argument("--p95", type=_positive, default=50.0, metavar="MS", help="of time to first audio (50)")
    parser.add_argument("--spare", type=_count, default=0, metavar="N", help="servers that may be lost (0)")
    parser.add_argument("--price-per-hour", type=_positive, metavar="X", help="of one server")
    parser.add_argument(
        "--audio-seconds", type=_positive, metavar="S", help="of a request (default: the record's mean)"
    )
    parser.add_argument("--loads", choices=tuple(_MODES), help="use these loads of the record only")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    record = read_serving_record(args.record)
    limit = limit_of(record, args.p95, _MODES.get(args.loads))
    audio_seconds = args.audio_seconds or record.audio_seconds
    plans = [row(plan(count, limit, args.spare), audio_seconds, args.price_per_hour) for count in args.listeners]
    if args.json:
        print(json.dumps(summary(record, limit, audio_seconds) | {"p95_ms": args.p95, "plans": plans}, indent=1))
    else:
        print("\n".join(lines(record, limit, audio_seconds)))
        print(aligned([list(COLUMNS.values()), *([_cell(one[name]) for name in COLUMNS] for one in plans)]))
    return ExitCode.OK


def row(made: Plan, audio_seconds: float | None, price_per_hour: float | None) -> dict[str, Any]:
    """A row of the table; None where the record lacks open loops or no price is given."""
    price = None if price_per_hour is None else made.servers * price_per_hour
    return {
        "listeners": made.listeners,
        "requests_per_s": round(made.listeners / audio_seconds, 1) if audio_seconds else None,
        "needed": made.needed,
        "spare": made.spare,
        "servers": made.servers,
        "listeners_per_server": round(made.listeners_per_server(), 1),
        "p95_ms": round(made.p95_ms(), 1),
        "p95_ms_without_spare": round(made.p95_ms(made.spare), 1),
        "price_per_hour": None if price is None else round(price, 2),
        "price_per_listener_hour": None if price is None else round(price / made.listeners, 6),
    }


def summary(record: ServingRecord, limit: Limit, audio_seconds: float | None) -> dict[str, Any]:
    return {
        "record": str(record.file),
        "gpu": record.gpu,
        "commit": record.commit,
        "audio_seconds_per_request": round(audio_seconds, 2) if audio_seconds else None,
        "listeners_per_server": round(limit.listeners, 1),
        "limit": str(limit),
    }


def lines(record: ServingRecord, limit: Limit, audio_seconds: float | None) -> Iterator[str]:
    yield f"record: {record.file}, {record.gpu}, commit {record.commit[:7]}"
    yield "a listener plays one second of audio a second" + (
        f": 1 request a second of {audio_seconds:.2f} s is {audio_seconds:.2f} listeners" if audio_seconds else ""
    )
    yield f"one server feeds {limit.listeners:.0f} listeners: {limit}"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,.10g}".replace(",", " ")


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("expected a number above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("expected a number of 0 or more")
    return value
