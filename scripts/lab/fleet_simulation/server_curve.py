"""Response of one server to its number of running streams, from the rows of a serving record."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qwen3_tts_client.capacity.serving_record import CLOSED, OPEN, ServingRecord
from qwen3_tts_client.errors import ClientError

Array = NDArray[np.float64]
# Standard deviations from a normal distribution's median to its 95th percentile.
P95_DEVIATIONS = 1.6449


@dataclass(frozen=True)
class ServerCurve:
    """Arrays are indexed by the number of running streams, from 0 to the largest closed loop of the record."""

    speed: Array
    """Seconds of audio a second of each of these streams."""
    median_ms: Array
    """Median time to first audio of the stream that makes their number."""
    deviation: Array
    """Standard deviation of the logarithm of time to first audio, taken as normal."""

    @classmethod
    def of(cls, record: ServingRecord) -> "ServerCurve":
        """A closed loop of c callers has c running streams. An open loop has audio_rate / speed of them (Little's law).

        Between the rows, the time for a second of audio is linear in the streams, and so are p50 and p95 of first
        audio. More streams are never faster: where the record says so, it is noise. Raises ClientError for a record
        with fewer than two closed loops.
        """
        closed = [row for row in record.of(CLOSED) if row.is_clean]
        if len(closed) < 2:
            raise ClientError(f"--record {record.file}: two closed loops without stalls and errors are required")
        callers = np.array([row.value for row in closed])
        streams = np.arange(int(callers[-1]) + 1)
        pace = np.interp(streams, callers, [row.value / row.audio_rate for row in closed])
        audio_rates = np.maximum.accumulate(streams / pace)

        def running(rate: float) -> float:
            return float(np.interp(rate, audio_rates, streams))

        opened = [row for row in record.of(OPEN) if row.is_clean and row.audio_rate < audio_rates[-1]]
        points = [(row.value, row) for row in closed] + [(running(row.audio_rate), row) for row in opened]
        points.sort(key=lambda point: point[0])
        at = [number for number, _ in points]
        p50, p95 = (
            np.interp(streams, at, np.maximum.accumulate([getattr(row, name) for _, row in points]))
            for name in ("p50_ms", "p95_ms")
        )
        return cls(1 / pace, p50, np.log(p95 / p50) / P95_DEVIATIONS)

    @property
    def largest(self) -> int:
        """Streams of the largest closed loop."""
        return len(self.speed) - 1

    def speeds(self, streams: NDArray[np.int64]) -> Array:
        """Speed with so many streams; beyond the largest closed loop they share its audio."""
        inside = np.minimum(streams, self.largest)
        shared: Array = self.speed[inside] * inside / np.maximum(streams, 1)
        return shared

    def first_audio_ms(self, streams: NDArray[np.int64], rng: np.random.Generator) -> Array:
        """One draw for each; beyond the largest closed loop as there."""
        inside = np.minimum(streams, self.largest)
        drawn: Array = self.median_ms[inside] * np.exp(self.deviation[inside] * rng.standard_normal(len(inside)))
        return drawn
