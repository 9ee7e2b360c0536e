"""Metrics of one stream or many: pure functions of timelines.

Times are integer nanoseconds. The origin of a request is its due time if it was scheduled (open loop), otherwise the
moment just before it was written.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from qwen3_tts_client.analysis.playback import NS, Playback, duration_ns, play
from qwen3_tts_client.records.timeline import Timeline

PERCENTILES = (50, 90, 95, 99)


def origin_ns(timeline: Timeline) -> int:
    return timeline.sent_ns if timeline.scheduled_ns is None else timeline.scheduled_ns


def ttfa_ns(timeline: Timeline) -> int | None:
    """First non-empty chunk received - origin."""
    return timeline.arrivals_ns[0] - origin_ns(timeline) if timeline.arrivals_ns else None


def audible_ttfa_ns(timeline: Timeline, playback: Playback) -> int | None:
    """Playback time of the first audible sample - origin. None for silence."""
    if timeline.onset_sample is None:
        return None
    ends = np.cumsum(timeline.samples)
    chunk = int(np.searchsorted(ends, timeline.onset_sample, side="right"))
    into_chunk = timeline.onset_sample - (int(ends[chunk]) - timeline.samples[chunk])
    return playback.starts_ns[chunk] + duration_ns(into_chunk, timeline.sample_rate) - origin_ns(timeline)


def first_chunk_ns(timeline: Timeline) -> int | None:
    """Duration of the audio in the first chunk."""
    return duration_ns(timeline.samples[0], timeline.sample_rate) if timeline.samples else None


def withheld_ns(timeline: Timeline) -> int:
    """Duration of the leading silence that the server did not send."""
    return duration_ns(timeline.withheld_samples, timeline.sample_rate)


def audio_ns(timeline: Timeline) -> int:
    return duration_ns(sum(timeline.samples), timeline.sample_rate)


def e2el_ns(timeline: Timeline) -> int | None:
    """Last chunk received - origin."""
    return timeline.arrivals_ns[-1] - origin_ns(timeline) if timeline.arrivals_ns else None


def rtf(timeline: Timeline) -> float | None:
    """Wall / audio: below 1 is faster than real time."""
    wall_ns = e2el_ns(timeline)
    return None if wall_ns is None else wall_ns / audio_ns(timeline)


def dispatch_lateness_ns(timeline: Timeline) -> int | None:
    """Written - due."""
    return None if timeline.scheduled_ns is None else timeline.sent_ns - timeline.scheduled_ns


def played(timeline: Timeline, prebuffer_ns: int = 0) -> Playback:
    return play(timeline.arrivals_ns, timeline.samples, timeline.sample_rate, prebuffer_ns)


def audio_throughput(timelines: Iterable[Timeline], start_ns: int, stop_ns: int) -> float:
    """Seconds of audio, over all streams, that arrived in [start, stop), per second."""
    arrivals_ns, audio_s = audio_arrivals(timelines)
    return float(audio_s[(arrivals_ns >= start_ns) & (arrivals_ns < stop_ns)].sum() * NS / (stop_ns - start_ns))


def audio_arrivals(timelines: Iterable[Timeline]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Arrival time (ns) and duration (s) of every chunk of all streams."""
    chunks = [
        (arrival_ns, samples / timeline.sample_rate)
        for timeline in timelines
        for arrival_ns, samples in zip(timeline.arrivals_ns, timeline.samples, strict=True)
    ]
    arrivals_ns, audio_s = zip(*chunks, strict=True) if chunks else ((), ())
    return np.array(arrivals_ns, np.int64), np.array(audio_s, np.float64)


def split_waves(timelines: Sequence[Timeline]) -> tuple[list[Timeline], list[Timeline]]:
    """Requests sent before any had ended, while the server was still filling up, and the later ones."""
    first_end_ns = min((timeline.end_ns for timeline in timelines), default=0)
    first = [timeline for timeline in timelines if timeline.sent_ns < first_end_ns]
    later = [timeline for timeline in timelines if timeline.sent_ns >= first_end_ns]
    return first, later


def percentiles(values: Iterable[float | None], scale: float = 1) -> dict[str, float] | None:
    """Mean, p50, p90, p95, p99 (nearest rank: values that occurred) and max, divided by `scale`; None if empty."""
    known = np.array([value for value in values if value is not None], np.float64) / scale
    if not len(known):
        return None
    points = np.percentile(known, PERCENTILES, method="inverted_cdf")
    named = {f"p{q}": float(point) for q, point in zip(PERCENTILES, points, strict=True)}
    return {"mean": float(known.mean()), **named, "max": float(known.max())}
