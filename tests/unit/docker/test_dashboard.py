"""The Grafana dashboard queries exported metrics, and all of them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qwen3_tts_engine.metrics import METRICS

DASHBOARD = json.loads((Path(__file__).parents[3] / "docker/grafana/dashboard.json").read_text())
KINDS = {metric.name: metric.kind for metric in METRICS}
SERIES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
# Triton's own metrics, from its docs/user_guide/metrics.md.
TRITON_METRICS = {
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
    "nv_gpu_utilization",
    "nv_gpu_memory_total_bytes",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_power_usage",
}
KNOWN = TRITON_METRICS | {name + ending for name, kind in KINDS.items() for ending in SERIES[kind]}


def queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


QUERIES = list(queries())


def metrics_of(query: str) -> set[str]:
    """Names with a metric's prefix in a PromQL query, outside braces and brackets."""
    return set(re.findall(r"\b(?:qwen3_tts|nv)_\w+", re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", query)))


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_queries_name_existing_metrics(title: str, query: str) -> None:
    assert metrics_of(query)
    assert metrics_of(query) <= KNOWN, title


def test_dashboard_shows_every_metric_of_the_server() -> None:
    shown = set().union(*(metrics_of(query) for _, query in QUERIES))
    assert {name for name in KINDS if not any(name + ending in shown for ending in SERIES[KINDS[name]])} == set()


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_queries_take_rates_of_counters_only(title: str, query: str) -> None:
    if "label_values" in query:
        return
    rated = set(re.findall(r"rate\((\w+)", query))
    gauges = {name for name in metrics_of(query) if KINDS.get(name) == "gauge" or name.startswith("nv_gpu")}
    assert rated == metrics_of(query) - gauges, title


def test_panels_do_not_overlap() -> None:
    def cells(position: dict[str, Any]) -> set[tuple[int, int]]:
        columns = range(position["x"], position["x"] + position["w"])
        return {(x, y) for x in columns for y in range(position["y"], position["y"] + position["h"])}

    panels = [cells(panel["gridPos"]) for panel in DASHBOARD["panels"]]
    assert len(set().union(*panels)) == sum(map(len, panels))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(panels)
