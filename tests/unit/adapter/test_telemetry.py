"""Reports of metrics cost a bounded number of messages; logs keep their levels."""

import gc
import logging
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qwen3_tts_engine import metrics


class Metric:
    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.values: list[float] = []

    def observe(self, value: float) -> None:
        self.values.append(value)

    increment = set = observe


class MetricFamily:
    COUNTER = GAUGE = HISTOGRAM = 0

    def __init__(self, name: str, description: str, kind: int) -> None:
        pass

    def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Metric:  # noqa: N802 - Triton's
        return Metric(labels)


@pytest.fixture
def telemetry(adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    module = adapter("telemetry", SimpleNamespace(MetricFamily=MetricFamily))
    for name in ("METRICS_PERIOD", "UNREADY_PERIOD"):
        monkeypatch.setattr(module, name, 1e9)
    return module


def test_families_live_as_long_as_their_metrics(telemetry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton drops a family whose object is gone."""
    families: list[weakref.ref[MetricFamily]] = []

    class Counted(MetricFamily):
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            families.append(weakref.ref(self))

    monkeypatch.setattr(telemetry.pb_utils, "MetricFamily", Counted)
    reporter = telemetry.MetricsReporter([], dict, {}, {})
    gc.collect()
    assert len(families) == len(metrics.METRICS)
    assert None not in [family() for family in families]
    reporter.close()


@pytest.mark.parametrize("count", [3, 50, 1000])
def test_a_histogram_gets_a_bounded_sample_and_a_counter_everything(telemetry: Any, count: int) -> None:
    recorder = metrics.Recorder()
    reporter = telemetry.MetricsReporter([recorder.take], dict, {"model": "m"}, {})
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


def test_ready_is_0_until_requests_are_served(telemetry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, was_asked_again = iter([0, 0, 1]), threading.Event()
    for name in ("METRICS_PERIOD", "UNREADY_PERIOD"):
        monkeypatch.setattr(telemetry, name, 0.01)

    def states() -> dict[str, float]:
        if (ready := next(answers, None)) is None:
            was_asked_again.set()
        return {metrics.READY.name: 1 if ready is None else ready}

    reporter = telemetry.MetricsReporter([], states, {}, {})
    assert was_asked_again.wait(60)
    reporter.close()
    assert reporter._metrics[metrics.READY.name,].values[:4] == [0, 0, 1, 1]


def test_metrics_are_reported_twice_a_second_once_ready(
    adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = adapter("telemetry", SimpleNamespace(MetricFamily=MetricFamily))
    waited, rounds = list[float](), iter([False, False, False, True])

    def wait(period: float) -> bool:
        waited.append(period)
        return next(rounds)

    event = SimpleNamespace(wait=wait, set=lambda: None)
    monkeypatch.setattr(module, "threading", SimpleNamespace(Event=lambda: event, Thread=threading.Thread))
    is_ready = iter([0, 1, 1])
    module.MetricsReporter([], lambda: {metrics.READY.name: next(is_ready)}, {}, {}).close()
    assert waited == [0.05, 0.05, 0.5, 0.5]


def test_one_metric_names_what_is_served(telemetry: Any) -> None:
    reporter = telemetry.MetricsReporter([], dict, {"model": "m"}, {"checkpoint": "folder"})
    reporter.close()
    assert reporter._metrics[metrics.INFO.name,].labels == {"model": "m", "checkpoint": "folder"}
    assert reporter._metrics[metrics.READY.name,].labels == {"model": "m"}


def test_triton_logs_a_record_at_its_level(adapter: Callable[..., Any]) -> None:
    written = list[str]()
    names = ("log_info", "log_warn", "log_error")
    logger = SimpleNamespace(**{name: lambda text, name=name: written.append(f"{name} {text}") for name in names})
    handler = adapter("telemetry", SimpleNamespace(Logger=logger)).TritonLogHandler()
    for level in (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        handler.emit(logging.makeLogRecord({"levelno": level, "msg": str(level)}))
    assert written == ["log_info 20", "log_warn 30", "log_error 40", "log_error 50"]
