"""Summaries of known schedules, exact to the microsecond."""

from typing import Any

import pytest

from qwen3_tts_client.analysis.playback import MS, NS
from qwen3_tts_client.analysis.summary import summarise, sustained_rate
from qwen3_tts_client.records.record import ClientRecord, LoadRecord, RequestRecord, Run
from qwen3_tts_client.records.timeline import Timeline

FRAME = 1920
US = 1000


def request(index: int, timeline: Timeline, phase: str = "measure", load: int = 0) -> RequestRecord:
    return RequestRecord(load, index, phase, 0, "p", None, 10, timeline)


def stream(sent_ms: float, ttfa_us: int, stall_us: int, onset: int | None = 0) -> Timeline:
    """Three frames: the first after `ttfa_us`, the second `stall_us` after its deadline, the third on its deadline."""
    sent = round(sent_ms * MS)
    first = sent + ttfa_us * US
    second = first + 80 * MS + stall_us * US
    third = second + 80 * MS
    return Timeline(sent, None, [first, second, third], [FRAME] * 3, 24_000, onset, third + 1, "ok")


def run(*requests: RequestRecord, stop_ns: int = NS) -> Run:
    return Run({}, [LoadRecord(0, "closed", 2, 0, stop_ns, stop_ns)], list(requests))


def test_ttfa_stalls_and_continuity_are_exact_to_the_microsecond() -> None:
    stalls_us = [0, 49_999, 50_000, 50_001, 100_001, 200_001]
    streams = [stream(0, 20_000 + number, stall) for number, stall in enumerate(stalls_us)]
    (row,) = summarise(run(*(request(n, s) for n, s in enumerate(streams))))
    assert row["ttfa_ms"]["p50"] == pytest.approx(20.002, abs=1e-9)
    assert row["ttfa_ms"]["max"] == pytest.approx(20.005, abs=1e-9)
    assert row["audible_ttfa_ms"] == row["ttfa_ms"]
    assert row["first_chunk_ms"]["p50"] == 80
    assert row["audio_s"]["mean"] == pytest.approx(0.24)
    continuity = row["rebuffering"]
    assert (continuity["c0"], continuity["c50"], continuity["c100"], continuity["c200"]) == (1 / 6, 3 / 6, 4 / 6, 5 / 6)
    assert continuity["largest_stall_ms"]["p50"] == pytest.approx(50.0, abs=1e-9)
    assert continuity["largest_stall_ms"]["max"] == pytest.approx(200.001, abs=1e-9)
    assert row["underruns"] == 5


def test_lateness_accumulates_in_a_player_that_never_rebuffers() -> None:
    late = Timeline(0, None, [0, 120 * MS, 240 * MS], [FRAME] * 3, 24_000, 0, NS, "ok")
    (row,) = summarise(run(request(0, late)))
    assert (row["rebuffering"]["c50"], row["never_rebuffering"]["c50"]) == (1.0, 0.0)
    assert row["stalled_ms"]["max"] == row["never_rebuffering"]["largest_stall_ms"]["max"] == 80


def test_prebuffer_absorbs_a_stall_of_its_length() -> None:
    (row,) = summarise(run(request(0, stream(0, 20_000, 60_000))), prebuffer_ns=60 * MS)
    assert row["rebuffering"]["c0"] == 1
    assert row["ttfa_ms"]["p50"] == 20
    assert row["audible_ttfa_ms"]["p50"] == 80


def test_failures_are_counted_but_excluded_from_latencies() -> None:
    refused = Timeline(0, None, end_ns=5, outcome="unavailable", error="full")
    broken = Timeline(0, None, [500 * MS], [FRAME], 24_000, 0, 600 * MS, "error", "gone")
    (row,) = summarise(run(request(0, stream(0, 20_000, 0)), request(1, refused), request(2, broken)))
    assert row["outcomes"] == {"ok": 1, "unavailable": 1, "error": 1}
    assert row["error_rate"] == pytest.approx(2 / 3)
    assert row["ttfa_ms"]["max"] == 20
    # Throughput includes the audio of failed streams.
    assert row["audio_throughput"] == pytest.approx(0.32)


def test_continuity_excludes_streams_of_one_chunk() -> None:
    single = Timeline(0, None, [MS], [FRAME], 24_000, 0, 2 * MS, "ok")
    (row,) = summarise(run(request(0, single)))
    assert row["rebuffering"]["streams"] == 0
    assert row["rebuffering"]["c50"] is None


def test_warm_up_is_excluded_from_latencies_but_counts_in_throughput() -> None:
    (row,) = summarise(run(request(0, stream(0, 900_000, 0), "warmup"), request(1, stream(0, 20_000, 0))))
    assert row["requests"] == 1
    assert row["ttfa_ms"]["max"] == 20
    # The second and third chunk of the warm-up arrive at 0.98 s and 1.06 s; the window ends at 1 s.
    assert row["audio_throughput"] == pytest.approx(0.24 + 0.16)


def test_reports_the_first_and_later_waves_separately() -> None:
    (row,) = summarise(
        run(request(0, stream(0, 20_000, 0)), request(1, stream(0, 90_000, 0)), request(2, stream(500, 30_000, 0)))
    )
    assert (row["first_wave"]["streams"], row["later_waves"]["streams"]) == (2, 1)
    assert row["first_wave"]["ttfa_ms"]["max"] == 90
    assert row["later_waves"]["ttfa_ms"]["max"] == 30


def test_summarises_each_load_with_its_worst_worker() -> None:
    both = Run(
        {},
        [LoadRecord(0, "closed", 1, 0, NS, NS), LoadRecord(1, "closed", 2, NS, 2 * NS, 2 * NS)],
        [request(0, stream(0, 20_000, 0)), request(0, stream(1000, 40_000, 0), load=1)],
        [ClientRecord(1, 0, 0.2, {"p99": 1.0}), ClientRecord(1, 1, 0.1, {"p99": 9.0})],
    )
    first, second = summarise(both)
    assert (first["ttfa_ms"]["max"], second["ttfa_ms"]["max"]) == (20, 40)
    assert (second["client_cpu_share"], second["client_loop_lag_p99_ms"]) == (0.2, 9.0)
    assert first["client_cpu_share"] is None


def test_summarises_a_load_without_requests() -> None:
    (row,) = summarise(run())
    assert row["requests"] == 0
    assert row["ttfa_ms"] is None
    assert row["error_rate"] is None


def load(rate: float, ttfa_ms: float | None = 10.0, c50: float | None = 1.0, error_rate: float = 0.0) -> dict[str, Any]:
    ttfa = None if ttfa_ms is None else {"p95": ttfa_ms}
    return {
        "mode": "open", "value": rate, "ttfa_ms": ttfa, "rebuffering": {"c50": c50}, "error_rate": error_rate,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "rate"),
    [
        ([], None),
        ([load(10), load(30), load(20)], 30),
        ([load(10), load(20, ttfa_ms=50.1), load(30)], 10),
        ([load(10), load(20, ttfa_ms=50.0), load(30, c50=0.999)], 20),
        ([load(10, error_rate=0.01)], None),
        ([load(10), load(20, ttfa_ms=None)], 10),
        ([load(10, c50=None), {"mode": "closed", "value": 99}], 10),
    ],
)
def test_sustained_rate_is_the_largest_below_the_first_bad_one(rows: list[dict[str, Any]], rate: float | None) -> None:
    assert sustained_rate(rows, 50.0) == rate
