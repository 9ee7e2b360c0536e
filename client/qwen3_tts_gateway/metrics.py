"""Prometheus metrics of the gateway."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FIRST_BYTE_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
# Longest first: one is the beginning of another.
KNOWN_PATHS = ("/v1/audio/speech/stream", "/v1/audio/speech", "/v1/audio/voices", "/v1/models")


class Metrics:
    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        prefix = "qwen3_tts_gateway_"
        self._requests = Counter(
            f"{prefix}requests", "Requests that ended", ("path", "outcome", "format"), registry=registry
        )
        self._first_byte = Histogram(
            f"{prefix}first_byte_seconds",
            "From a request to the first byte of its audio",
            ("format",),
            buckets=FIRST_BYTE_BUCKETS_S,
            registry=registry,
        )
        self._encoder = Counter(
            f"{prefix}encoder_seconds", "Time in filters and encoders", ("format",), registry=registry
        )
        self._audio = Counter(
            f"{prefix}audio_seconds", "Speech received from the Triton servers", ("format",), registry=registry
        )
        self.streams = Gauge(f"{prefix}streams", "Utterances that run on the Triton servers", registry=registry)

    def count_request(self, path: str, outcome: str, format_name: str, first_byte_ms: float | None) -> None:
        known = next((known for known in KNOWN_PATHS if path.startswith(known)), "other")
        self._requests.labels(known, outcome, format_name).inc()
        if format_name and first_byte_ms is not None:
            self._first_byte.labels(format_name).observe(first_byte_ms / 1e3)

    def count_audio(self, format_name: str, audio_s: float, encoder_s: float) -> None:
        self._audio.labels(format_name).inc(audio_s)
        self._encoder.labels(format_name).inc(encoder_s)

    def page(self) -> bytes:
        return generate_latest(self._registry)
