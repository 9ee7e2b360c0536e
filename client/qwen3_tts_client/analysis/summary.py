"""Summarises each load of a run as a JSON object. Keys carry the unit."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qwen3_tts_client.analysis import metrics
from qwen3_tts_client.analysis.metrics import percentiles
from qwen3_tts_client.analysis.playback import MS, NS, Playback, share_within
from qwen3_tts_client.records.record import LoadRecord, Run
from qwen3_tts_client.records.timeline import Timeline

CONTINUITY_LIMITS_MS = (50, 100, 200)


def summarise(run: Run, prebuffer_ns: int = 0) -> list[dict[str, Any]]:
    """One object per load, in order."""
    return [
        {
            "mode": load.mode,
            "value": load.value,
            "interrupted": load.interrupted,
            **_client(run, load),
            **_traffic(run, load),
            **_waves([timeline for timeline in measured(run, load) if timeline.outcome == "ok"], prebuffer_ns),
        }
        for load in run.loads
    ]


def is_good(row: dict[str, Any], ttfa_p95_ms: float) -> bool:
    """Whether a load had no error, no stall above 50 ms, and a p95 TTFA within the limit."""
    ttfa, has_stall = row["ttfa_ms"], row["rebuffering"]["c50"] not in (1.0, None)
    return ttfa is not None and ttfa["p95"] <= ttfa_p95_ms and not has_stall and not row["error_rate"]


def sustained_rate(rows: Sequence[dict[str, Any]], ttfa_p95_ms: float) -> float | None:
    """The largest measured request rate up to which every measured rate is good; None without any."""
    rates = sorted((row for row in rows if row["mode"] == "open"), key=lambda row: float(row["value"]))
    good = itertools.takewhile(lambda row: is_good(row, ttfa_p95_ms), rates)
    return max((float(row["value"]) for row in good), default=None)


def measured(run: Run, load: LoadRecord) -> list[Timeline]:
    """The timelines of a load without its warm-up."""
    return [record.timeline for record in run.requests if record.load == load.id and record.phase == "measure"]


def _client(run: Run, load: LoadRecord) -> dict[str, Any]:
    """Worst values of the worker processes."""
    clients = [client for client in run.clients if client.load == load.id]
    return {
        "client_cpu_share": max((client.cpu_share for client in clients), default=None),
        "client_loop_lag_p99_ms": max((client.loop_lag_ms["p99"] for client in clients), default=None),
    }


def _traffic(run: Run, load: LoadRecord) -> dict[str, Any]:
    """`outcomes` counts every measured request; throughputs cover all that arrived in the window."""
    everything = [record.timeline for record in run.requests if record.load == load.id]
    timelines = measured(run, load)
    outcomes = Counter(timeline.outcome for timeline in timelines)
    window_s = (load.stop_ns - load.start_ns) / NS
    ended = sum(t.outcome == "ok" and load.start_ns <= t.end_ns < load.stop_ns for t in everything)
    return {
        "window_s": window_s,
        "requests": len(timelines),
        "outcomes": dict(outcomes),
        "finish_reasons": dict(Counter(t.finish_reason for t in timelines if t.finish_reason)),
        "error_rate": 1 - outcomes["ok"] / len(timelines) if timelines else None,
        "audio_throughput": metrics.audio_throughput(everything, load.start_ns, load.stop_ns),
        "request_throughput": ended / window_s,
        "dispatch_lateness_ms": percentiles(map(metrics.dispatch_lateness_ns, timelines), MS),
    }


def _waves(ok: Sequence[Timeline], prebuffer_ns: int) -> dict[str, Any]:
    first, later = metrics.split_waves(ok)
    return {
        **_stream_figures(ok, prebuffer_ns),
        "first_wave": _stream_figures(first, prebuffer_ns),
        "later_waves": _stream_figures(later, prebuffer_ns),
    }


def _stream_figures(timelines: Sequence[Timeline], prebuffer_ns: int = 0) -> dict[str, Any]:
    """Latency, speed and continuity of successful streams."""
    playbacks = [metrics.played(timeline, prebuffer_ns) for timeline in timelines]
    gaps = [gap for timeline in timelines for gap in np.diff(timeline.arrivals_ns).tolist()]
    return {
        "streams": len(timelines),
        "ttfa_ms": percentiles(map(metrics.ttfa_ns, timelines), MS),
        "audible_ttfa_ms": percentiles(map(metrics.audible_ttfa_ns, timelines, playbacks), MS),
        "withheld_silence_ms": percentiles(map(metrics.withheld_ns, timelines), MS),
        "first_chunk_ms": percentiles(map(metrics.first_chunk_ns, timelines), MS),
        "inter_chunk_ms": percentiles(gaps, MS),
        "e2el_ms": percentiles(map(metrics.e2el_ns, timelines), MS),
        "audio_s": percentiles(map(metrics.audio_ns, timelines), NS),
        "rtf": percentiles(map(metrics.rtf, timelines)),
        "stalled_ms": percentiles((playback.stalled_ns for playback in playbacks), MS),
        "underruns": sum(playback.underruns for playback in playbacks),
        "rebuffering": continuity(playbacks, lambda playback: playback.largest_stall_ns),
        "never_rebuffering": continuity(playbacks, lambda playback: playback.lateness_ns),
    }


def continuity(playbacks: Sequence[Playback], worst: Callable[[Playback], int]) -> dict[str, Any]:
    """C50, C100, C200 and the share without any stall, of multi-chunk streams; None without any."""
    several = [worst(playback) for playback in playbacks if len(playback.starts_ns) > 1]
    return {
        "streams": len(several),
        "c0": share_within(several, 0),
        **{f"c{limit}": share_within(several, limit * MS) for limit in CONTINUITY_LIMITS_MS},
        "largest_stall_ms": percentiles(several, MS),
    }
