"""Reports of metrics cost a bounded number of messages."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qwen3_tts_engine import metrics


class Metric:
    def __init__(self) -> None:
        self.values: list[float] = []

    def observe(self, value: float) -> None:
        self.values.append(value)

    increment = set = observe


class MetricFamily:
    COUNTER = GAUGE = HISTOGRAM = 0

    def __init__(self, name: str, description: str, kind: int) -> None:
        pass

    def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Metric:  # noqa: N802 - Triton's
        return Metric()


@pytest.fixture
def telemetry(adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    module = adapter("telemetry", SimpleNamespace(MetricFamily=MetricFamily))
    monkeypatch.setattr(module, "METRICS_PERIOD", 1e9)
    return module


@pytest.mark.parametrize("count", [3, 50, 1000])
def test_a_histogram_gets_a_bounded_sample_and_a_counter_everything(telemetry: Any, count: int) -> None:
    recorder = metrics.Recorder()
    reporter = telemetry.MetricsReporter(recorder, {"model": "m"})
    for value in range(count):
        recorder.observe(metrics.TTFA, value)
        recorder.count(metrics.FRAMES)
    reporter._report(recorder.take())
    reporter.close()
    observed = reporter._metrics[metrics.TTFA.name,].values
    assert len(observed) == min(count, telemetry.MAX_OBSERVATIONS)
    assert len(set(observed)) == len(observed)
    assert set(observed) <= set(range(count))
    assert reporter._metrics[metrics.FRAMES.name,].values == [count]
