"""The number of servers follows the streams."""

import re
from pathlib import Path

import pytest
import yaml

from qwen3_tts_engine.metrics import METRICS, RUNNING, WAITING
from tests.unit.helm.chart import CHART, FLEET, NAMESPACE, VALUES, Object, of_kind, one, render

UNMEASURED = CHART / "ci" / "unmeasured-values.yaml"


def scaled_object(values: Path, *options: str) -> Object:
    [found] = of_kind(render(values, *options), "ScaledObject")
    return found


def trigger(values: Path, *options: str) -> Object:
    [found] = scaled_object(values, *options)["spec"]["triggers"]
    metadata: Object = found["metadata"]
    assert found["metricType"] == "AverageValue"
    return metadata


def test_query_sums_the_streams_that_run_and_wait() -> None:
    query = trigger(FLEET)["query"]
    assert re.findall(r"sum\((\w+)\{", query) == [RUNNING.name, WAITING.name]
    assert {metric.kind for metric in METRICS if metric.name in query} == {"gauge"}


def test_query_selects_the_servers_of_the_release() -> None:
    service = one(render(FLEET), "Service", "server")["metadata"]["name"]
    labels = set(re.findall(r"\{([^}]*)\}", trigger(FLEET)["query"]))
    assert labels == {f'namespace="{NAMESPACE}",service="{service}"'}


@pytest.mark.parametrize(("streams", "percent"), [(256, 70), (100, 50), (3, 90), (1, 10)])
def test_threshold_is_the_used_share_of_a_servers_streams(streams: int, percent: int) -> None:
    options = (f"autoscaling.streamsPerServer={streams}", f"autoscaling.targetPercent={percent}")
    found = trigger(FLEET, *(f"--set={option}" for option in options))["threshold"]
    assert int(found) == max(1, streams * percent // 100)


def test_capacity_is_the_presets_unless_it_is_given() -> None:
    presets = yaml.safe_load((CHART / "values.yaml").read_text())["presets"]
    assert int(trigger(FLEET)["threshold"]) == presets["h200"]["streams"] * 70 // 100
    assert int(trigger(UNMEASURED)["threshold"]) == 50


def test_missing_metrics_stop_no_servers() -> None:
    assert trigger(FLEET)["ignoreNullValues"] == "false"
    assert "fallback" not in scaled_object(FLEET)["spec"]


def test_scaled_object_scales_the_servers() -> None:
    objects = render(FLEET)
    assert scaled_object(FLEET)["spec"]["scaleTargetRef"] == {
        "name": one(objects, "Deployment", "server")["metadata"]["name"]
    }


def test_presets_fit_the_engine_and_its_records() -> None:
    presets = yaml.safe_load((CHART / "values.yaml").read_text())["presets"]
    assert presets["h200"]["streams"] == presets["h200"]["settings"]["max_streams"]
    # Without a record there is no capacity to plan with.
    assert "streams" not in presets["unmeasured"]


def test_only_autoscaled_value_files_have_a_scaled_object() -> None:
    for values in VALUES:
        enabled = yaml.safe_load(values.read_text()).get("autoscaling", {}).get("enabled", False)
        assert len(of_kind(render(values), "ScaledObject")) == enabled
