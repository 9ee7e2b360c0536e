"""Evaluation of a record by scripts.benchmarks.overload."""

from qwen3_tts_client.analysis.playback import MS, NS
from qwen3_tts_client.records.record import LoadRecord, RequestRecord, Run
from qwen3_tts_client.records.timeline import Timeline
from scripts.benchmarks.overload import Load, normal_after

SAMPLES = 1920


def request(load: int, sent_ms: int, outcome: str, after_ms: tuple[int, ...], end_ms: int = 200) -> RequestRecord:
    """A request sent at `sent_ms` that received chunks of one frame `after_ms` later."""
    sent = load * 100 * NS + sent_ms * MS
    arrivals = [sent + each * MS for each in after_ms]
    timeline = Timeline(sent, None, arrivals, [SAMPLES] * len(arrivals), end_ns=sent + end_ms * MS, outcome=outcome)
    return RequestRecord(load, 0, "measure", 0, "p", None, 1, timeline)


def loads(*requests: RequestRecord) -> list[Load]:
    ids = sorted({request.load for request in requests})
    records = [LoadRecord(i, "open", 2.0, i * 100 * NS, i * 100 * NS + 60 * NS, i * 100 * NS + 61 * NS) for i in ids]
    return list(Load.all_of(Run({}, records, list(requests))))


def test_a_row_counts_served_refused_and_failed_requests() -> None:
    [load] = loads(
        request(0, 0, "ok", (10, 120)),  # the second chunk is 30 ms late
        request(0, 5, "ok", (20, 100)),
        request(0, 7, "unavailable", (), end_ms=8),
        request(0, 9, "error", ()),
    )
    row = load.row()
    assert [row[name] for name in ("requests", "served", "refused", "failed")] == [4, 2, 1, 1]
    assert (row["largest_stall_ms"], row["refusal_max_ms"]) == (30.0, 8.0)


def test_recovery_is_the_first_second_without_refusals_and_with_the_normal_ttfa() -> None:
    before, after = loads(
        *(request(0, i * 100, "ok", (100,)) for i in range(20)),
        request(1, 0, "unavailable", ()),  # a second with a refusal
        request(1, 500, "ok", (100,)),
        request(1, 1500, "ok", (400,)),  # slow first audio
        request(1, 2100, "ok", (110,)),
        request(1, 5000, "ok", (900,)),  # after the recovery, so ignored
    )
    assert normal_after(before, after) == 2
    assert normal_after(before, before) == 0
