"""What the server reports of itself; the adapter hands these to Triton's metrics endpoint."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from qwen3_tts_engine.request import Outcome

LATENCY_BUCKETS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
STEP_BUCKETS = (0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2)


@dataclass(frozen=True)
class Metric:
    """`labels` are the values that the metric is split by, besides model and version."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    buckets: tuple[float, ...] = ()
    labels: tuple[dict[str, str], ...] = ({},)


TTFA = Metric(
    "qwen3_tts_time_to_first_audio_seconds", "histogram", "Arrival to first audio handed to Triton", LATENCY_BUCKETS
)
STEP = Metric("qwen3_tts_step_duration_seconds", "histogram", "One tick: launch to codes on the host", STEP_BUCKETS)
ADMISSION = Metric("qwen3_tts_admission_wait_seconds", "histogram", "Arrival to a slot", LATENCY_BUCKETS)
PREFILL = Metric("qwen3_tts_prefill_seconds", "histogram", "Slot to first frame on the host", LATENCY_BUCKETS)
CHUNK_WAIT = Metric("qwen3_tts_chunk_wait_seconds", "histogram", "Chunk ready to codec called", LATENCY_BUCKETS)
CODEC = Metric("qwen3_tts_codec_seconds", "histogram", "Codec called to waveform on the host", LATENCY_BUCKETS)
SEND = Metric("qwen3_tts_send_seconds", "histogram", "Waveform on the host to chunks handed to Triton", LATENCY_BUCKETS)
RUNNING = Metric("qwen3_tts_requests_running", "gauge", "Streams that hold a slot")
WAITING = Metric("qwen3_tts_requests_waiting", "gauge", "Streams that wait for a slot")
PAGES_USED = Metric("qwen3_tts_kv_pages_used_ratio", "gauge", "Part of the key/value pages in use")
FRAMES = Metric("qwen3_tts_frames_total", "counter", "Frames made by the talker")
AUDIO = Metric("qwen3_tts_audio_seconds_total", "counter", "Audio handed to Triton")
REQUESTS = Metric(
    "qwen3_tts_requests_total",
    "counter",
    "Requests by how they ended",
    labels=tuple({"outcome": outcome.value} for outcome in Outcome),
)
METRICS = (
    TTFA, STEP, ADMISSION, PREFILL, CHUNK_WAIT, CODEC, SEND, RUNNING, WAITING, PAGES_USED, FRAMES, AUDIO, REQUESTS,
)  # fmt: skip


@dataclass
class Readings:
    """What has come in since the last time: histogram observations, counter increments, gauge values."""

    observed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counted: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    gauges: dict[str, float] = field(default_factory=dict)


class Recorder:
    """Collects readings from every thread; reporting them costs a round trip each, so it happens elsewhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings = Readings()
        self._is_paused = False

    def observe(self, metric: Metric, seconds: float) -> None:
        with self._lock:
            if not self._is_paused:
                self._readings.observed[metric.name].append(seconds)

    def count(self, metric: Metric, amount: float = 1.0, label: str = "") -> None:
        with self._lock:
            if not self._is_paused:
                self._readings.counted[metric.name, label] += amount

    def set(self, metric: Metric, value: float) -> None:
        with self._lock:
            self._readings.gauges[metric.name] = value

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Observes and counts nothing within; gauges are set."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def take(self) -> Readings:
        """The readings since the last call."""
        with self._lock:
            taken, self._readings = self._readings, Readings()
            return taken
