import pytest

from qwen3_tts_client.analysis import metrics
from qwen3_tts_client.records.timeline import Timeline

MS = 1_000_000
FRAME = 1920


def timeline(**fields: object) -> Timeline:
    defaults: dict[str, object] = {
        "sent_ns": 1000 * MS,
        "arrivals_ns": [1150 * MS, 1200 * MS, 1400 * MS],
        "samples": [FRAME, FRAME, 2 * FRAME],
        "onset_sample": 2400,
        "end_ns": 1401 * MS,
        "outcome": "ok",
    }
    return Timeline(**(defaults | fields))  # type: ignore[arg-type]


def test_times_are_exact_to_the_nanosecond() -> None:
    one = timeline(arrivals_ns=[1150 * MS + 1, 1200 * MS, 1400 * MS + 7])
    assert metrics.ttfa_ns(one) == 150 * MS + 1
    assert metrics.e2el_ns(one) == 400 * MS + 7
    assert metrics.first_chunk_ns(one) == 80 * MS
    assert metrics.first_chunk_ns(timeline(samples=[2 * FRAME, FRAME, FRAME])) == 160 * MS
    assert metrics.audio_ns(one) == 320 * MS


def test_rtf_is_wall_time_over_audio_time() -> None:
    assert metrics.rtf(timeline()) == 400 / 320


def test_audible_ttfa_is_the_playback_time_of_the_onset() -> None:
    one = timeline()
    # Sample 2400 is 20 ms into the second chunk, which plays after the first.
    assert metrics.audible_ttfa_ns(one, metrics.played(one)) == (150 + 80 + 20) * MS
    # The third chunk is 90 ms late, which delays its onset.
    late = timeline(onset_sample=2 * FRAME)
    assert metrics.audible_ttfa_ns(late, metrics.played(late)) == 400 * MS
    assert metrics.audible_ttfa_ns(late, metrics.played(late, prebuffer_ns=60 * MS)) == 400 * MS
    first = timeline(onset_sample=0)
    assert metrics.audible_ttfa_ns(first, metrics.played(first, prebuffer_ns=60 * MS)) == 210 * MS
    silent = timeline(onset_sample=None)
    assert metrics.audible_ttfa_ns(silent, metrics.played(silent)) is None


def test_scheduled_requests_are_timed_from_their_due_time() -> None:
    due = timeline(scheduled_ns=990 * MS)
    assert metrics.ttfa_ns(due) == 160 * MS
    assert metrics.e2el_ns(due) == 410 * MS
    assert metrics.dispatch_lateness_ns(due) == 10 * MS
    assert metrics.dispatch_lateness_ns(timeline()) is None


def test_times_are_none_without_audio() -> None:
    empty = timeline(arrivals_ns=[], samples=[], onset_sample=None, outcome="error")
    for figure in (metrics.ttfa_ns, metrics.e2el_ns, metrics.rtf, metrics.first_chunk_ns):
        assert figure(empty) is None
    assert metrics.audio_ns(empty) == 0


def test_throughput_counts_audio_received_in_the_window() -> None:
    streams = [timeline(), timeline(arrivals_ns=[1000 * MS, 1100 * MS, 2000 * MS])]
    # The second stream's chunk at the start of the window counts; the one at its end does not.
    assert metrics.audio_throughput(streams, 1000 * MS, 2000 * MS) == pytest.approx(0.32 + 0.16)
    assert metrics.audio_throughput(streams, 1200 * MS, 1300 * MS) == pytest.approx(0.8)


def test_first_wave_is_every_request_sent_before_any_stream_ended() -> None:
    first = [timeline(sent_ns=0, end_ns=500), timeline(sent_ns=499, end_ns=900)]
    later = [timeline(sent_ns=500, end_ns=1000)]
    assert metrics.split_waves(first + later) == (first, later)
    assert metrics.split_waves([]) == ([], [])


def test_percentiles_ignore_missing_values() -> None:
    found = metrics.percentiles([None, *(value * MS for value in range(20, 0, -1))], MS)
    assert found == {"mean": 10.5, "p50": 10, "p90": 18, "p95": 19, "p99": 20, "max": 20}
    assert metrics.percentiles([None]) is None
