"""Scrapes Prometheus metrics and computes histogram quantiles between two scrapes."""

import re
import urllib.request
from collections import defaultdict
from collections.abc import Mapping

SCRAPE_TIMEOUT_S = 5.0
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*(?:\{.*\})?)\s+(\S+)")
_TYPE = re.compile(r"^# TYPE (\S+) (\S+)")
_BOUND = re.compile(r'\ble="([^"]+)"')


def scrape(url: str) -> str | None:
    """The text of a metrics endpoint, None if unreachable."""
    try:
        with urllib.request.urlopen(url, timeout=SCRAPE_TIMEOUT_S) as response:
            return str(response.read().decode())
    except (OSError, ValueError):
        return None


def parse(text: str, kind: str | None = None) -> dict[str, float]:
    """Sample name with labels to value; `kind` ("gauge") keeps only metrics of that type."""
    samples, current = {}, None
    for line in text.splitlines():
        if declared := _TYPE.match(line):
            current = declared[2]
        elif (sample := _SAMPLE.match(line)) and kind in (None, current):
            samples[sample[1]] = float(sample[2])
    return samples


def total(samples: Mapping[str, float], name: str, label: str = "") -> float | None:
    """Sum of a metric over its samples, or those with a label (name="value"); None if absent."""
    named = ((sample.partition("{"), value) for sample, value in samples.items())
    values = [value for (found, _, labels), value in named if found == name and label in labels]
    return sum(values) if values else None


def label_of(samples: Mapping[str, float], name: str, given: str, label: str) -> str | None:
    """The value of a label of a metric's first sample with the label `given` (name="value"); None if absent."""
    for sample in samples:
        found, _, labels = sample.partition("{")
        if found == name and given in labels and (value := re.search(rf'\b{label}="((?:[^"\\]|\\.)*)"', labels)):
            return re.sub(r"\\(.)", r"\1", value[1])
    return None


def bucket_counts(samples: Mapping[str, float], name: str) -> dict[float, float]:
    """Upper bound to cumulative count of a histogram, summed over labels."""
    counts: dict[float, float] = defaultdict(float)
    for sample, value in samples.items():
        if sample.startswith(f"{name}_bucket{{") and (bound := _BOUND.search(sample)):
            counts[float(bound[1])] += value
    return dict(counts)


def quantile_between(before: Mapping[str, float], after: Mapping[str, float], name: str, q: float) -> float | None:
    """The q-quantile of a histogram's observations between two scrapes, linear within a bucket as in PromQL.

    None without observations; the last finite bound if the quantile exceeds it.
    """
    then = bucket_counts(before, name)
    counts = {bound: count - then.get(bound, 0.0) for bound, count in sorted(bucket_counts(after, name).items())}
    total = max(counts.values(), default=0.0)
    if total <= 0:
        return None
    low, below = 0.0, 0.0
    for bound, count in counts.items():
        if count >= q * total:
            return low if bound == float("inf") else low + (bound - low) * (q * total - below) / (count - below)
        low, below = bound, count
    return None
