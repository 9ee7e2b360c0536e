"""Command line options of `bench`."""

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from qwen3_tts_client import options
from qwen3_tts_client.bench.prompt import DEFAULT_FILE

T = TypeVar("T", int, float)


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_load_options(
        parser.add_argument_group("load", "run in sequence: first request, bursts, concurrencies, request rates")
    )
    text = parser.add_argument_group("text").add_mutually_exclusive_group()
    text.add_argument("--prompt-file", type=Path, default=DEFAULT_FILE, metavar="FILE.jsonl")
    text.add_argument("--text", help="the same text in every request")
    target = parser.add_argument_group("target and results")
    target.add_argument("--service-kind", choices=("triton", "openai"), default="triton")
    target.add_argument("--endpoint", default="/v1/audio/speech", help="openai: path of the speech endpoint")
    target.add_argument("--extra-inputs", type=json_object, default={}, metavar="JSON", help="openai: body fields")
    target.add_argument("--metrics-url", default="http://localhost:8002/metrics", help="Prometheus metrics to record")
    target.add_argument("--artifact-dir", type=Path, metavar="DIR", help="default artifacts/<model>-<time>")
    target.add_argument("-v", "--verbose", action="store_true", help="print every failure reason")
    options.add_playback_options(parser)
    options.add_server_options(parser)
    options.add_request_options(parser)


def _add_load_options(group: Any) -> None:
    values = "N,N|START:END:STEP"
    group.add_argument(
        "--concurrency", type=int_values, metavar=values, help="closed loop: concurrent streams (default 1)"
    )
    group.add_argument("--request-rate", type=float_values, metavar=values, help="open loop: Poisson arrivals/second")
    group.add_argument("--burst", type=int_values, metavar=values, help="requests sent at once to an idle server")
    group.add_argument("--burst-rounds", type=count, default=5, metavar="N", help="repetitions of each burst (5)")
    group.add_argument("--first-request", action="store_true", help="measure one request before every other load")
    group.add_argument(
        "--binary-search", action="store_true", help="measure only the request rates that locate the largest good one"
    )
    group.add_argument(
        "--latency-threshold", type=float, default=50.0, metavar="MS", help="p95 TTFA of a good request rate (50)"
    )
    group.add_argument("--measurement-interval", type=count, default=10_000, metavar="MS", help="per load (10000)")
    group.add_argument("--request-count", type=count, metavar="N", help="requests per load, instead of a time")
    group.add_argument("--warmup-request-count", type=int, default=0, metavar="N", help="before each load, unmeasured")
    group.add_argument("--stagger-ms", type=float, default=1000, metavar="MS", help="closed loop: spread of the starts")
    group.add_argument("--random-seed", type=int, default=0, help="for arrivals, prompt order and sampling")
    group.add_argument("--workers", type=count, default=1, metavar="N", help="client processes")


def count(text: str) -> int:
    values = int_values(text)
    if len(values) != 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected one number")
    return values[0]


def int_values(text: str) -> list[int]:
    return _values(text, int)


def float_values(text: str) -> list[float]:
    return _values(text, float)


def _values(text: str, kind: Callable[[str], T]) -> list[T]:
    """Parses "1,8,32" or "1:32:8", both ends included."""
    is_range = ":" in text
    try:
        values = [kind(part) for part in text.split(":" if is_range else ",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers, such as 1,8,32 or 8:32:8") from None
    if not all(value > 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers above 0")
    if not is_range:
        return values
    if len(values) != 3 or values[1] < values[0]:
        raise argparse.ArgumentTypeError(f"{text!r}: expected START:END:STEP with START <= END")
    start, stop, step = values
    return list(itertools.takewhile(lambda value: value <= stop, itertools.count(start, step)))


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a JSON object")
    return value
