"""Reports metrics and logs through Triton."""

import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from qwen3_tts_engine import metrics

log = logging.getLogger("qwen3_tts")

METRICS_PERIOD = 0.5
# While the server starts or drains: the launcher waits for both.
UNREADY_PERIOD = 0.05
# Observations of one histogram per period; of more a random sample is reported. At 300 requests a second all of them
# would be 2 000 messages a second, beside 3 400 of audio.
MAX_OBSERVATIONS = 50


class MetricsReporter:
    """Reports the engine's metrics to Triton twice a second while it is ready, since each value costs a message."""

    def __init__(
        self,
        sources: Sequence[Callable[[], metrics.Readings]],
        states: Callable[[], dict[str, float]],
        labels: dict[str, str],
        facts: dict[str, str],
    ) -> None:
        """`states` returns gauges by name, READY among them; they are reported in its order, after all `sources`.

        `labels` are those of every metric, `facts` more of metrics.INFO.
        """
        self._sources, self._states = sources, states
        self._metrics: dict[tuple[str, ...], Any] = {}
        labels_of = {metrics.INFO.name: labels | facts}
        self._families = [self._register(metric, labels_of.get(metric.name, labels)) for metric in metrics.METRICS]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _register(self, metric: metrics.Metric, labels: dict[str, str]) -> Any:
        kind = getattr(pb_utils.MetricFamily, metric.kind.upper())
        family = pb_utils.MetricFamily(name=metric.name, description=metric.help, kind=kind)
        options = {"buckets": list(metric.buckets)} if metric.buckets else {}
        for extra in metric.labels:
            self._metrics[metric.name, *extra.values()] = family.Metric(labels=labels | extra, **options)
        return family

    def _run(self) -> None:
        period = UNREADY_PERIOD
        while not self._closed.wait(period):
            try:
                states = self._states()
                period = METRICS_PERIOD if states[metrics.READY.name] else UNREADY_PERIOD
                for take in self._sources:
                    self._report(take())
                self._report(metrics.Readings(gauges=states))
            except Exception:
                log.exception("reporting metrics failed")

    def _report(self, readings: metrics.Readings) -> None:
        for name, values in readings.observed.items():
            for value in sampled(values):
                self._metrics[(name,)].observe(value)
        for (name, label), amount in readings.counted.items():
            self._metrics[(name, label) if label else (name,)].increment(amount)
        for name, value in readings.gauges.items():
            self._metrics[(name,)].set(value)


def sampled(values: list[float]) -> list[float]:
    return values if len(values) <= MAX_OBSERVATIONS else random.sample(values, MAX_OBSERVATIONS)


class TritonLogHandler(logging.Handler):
    """Forwards log records to Triton's logger."""

    def emit(self, record: logging.LogRecord) -> None:
        write = pb_utils.Logger.log_error if record.levelno >= logging.ERROR else pb_utils.Logger.log_info
        if record.levelno == logging.WARNING:
            write = pb_utils.Logger.log_warn
        write(self.format(record))
