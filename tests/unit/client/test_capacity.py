"""Servers planned from a record of one server."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.capacity.plan import limit_of, plan
from qwen3_tts_client.capacity.serving_record import Row, ServingRecord, read_serving_record
from qwen3_tts_client.errors import ClientError, ExitCode

SERVING = Path(__file__).parents[3] / "docs" / "benchmarks" / "serving-h200.json"
# Closed loops find their limit between 200 and 300 listeners; open loops of 5 s a request end before theirs.
CLOSED_ROWS = [("c=1", 10, 10.0), ("c=8", 100, 20.0), ("c=32", 200, 40.0), ("c=64", 300, 80.0)]
OPEN_ROWS = [("rps=10", 50, 15.0), ("rps=30", 150, 25.0)]
LOADS = st.integers(1, 10**6)
MORE_MS = st.floats(0, 500)


def fields(load: str, audio_rate: float, p95_ms: float | None, **more: Any) -> dict[str, Any]:
    p50_ms = None if p95_ms is None else p95_ms / 2
    row = {"load": load, "ttfa_p50_ms": p50_ms, "ttfa_p95_ms": p95_ms, "audio_s_per_s": audio_rate}
    return row | {"stalled_over_50ms": 0, "errors": 0} | more


def written(folder: Path, *rows: dict[str, Any], **more: Any) -> Path:
    file = folder / "record.json"
    file.write_text(json.dumps({"gpu": "G", "commit": "0123456789", "rows": rows, **more}))
    return file


def record(folder: Path, *rows: tuple[str, float, float | None]) -> ServingRecord:
    return read_serving_record(written(folder, *(fields(*row) for row in rows)))


@st.composite
def records(draw: st.DrawFn) -> ServingRecord:
    """The first load is good at its own p95; more callers have more audio a second, later."""
    size = draw(st.integers(1, 6))
    rates = sorted(draw(st.lists(st.floats(1, 5000), min_size=size, max_size=size)))
    times = sorted(draw(st.lists(st.floats(1, 500), min_size=size, max_size=size)))
    faults = draw(st.integers(1, 3 * size))
    rows = [
        Row("c", callers, time / 2, time, rate, stalls=int(callers > faults), errors=0)
        for callers, (rate, time) in enumerate(zip(rates, times, strict=True), 1)
    ]
    return ServingRecord(Path("made"), "G", "0", tuple(rows))


def test_the_limit_lies_between_the_last_good_row_and_the_next(tmp_path: Path) -> None:
    limit = limit_of(record(tmp_path, *CLOSED_ROWS), p95_ms=50)
    assert limit.listeners == pytest.approx(225)
    assert "between c=32 (p95 40.0 ms) and c=64 (p95 80.0 ms)" in str(limit)


def test_the_largest_row_is_the_limit_when_all_are_good(tmp_path: Path) -> None:
    limit = limit_of(record(tmp_path, *CLOSED_ROWS), p95_ms=1000)
    assert limit.listeners == 300
    assert "the largest closed loop of the record, c=64" in str(limit)


@pytest.mark.parametrize("fault", [{"stalled_over_50ms": 1}, {"errors": 2}])
def test_no_load_beyond_the_last_good_row_is_taken_when_the_next_has_faults(
    tmp_path: Path, fault: dict[str, int]
) -> None:
    *good, last = (fields(*row) for row in CLOSED_ROWS)
    limit = limit_of(read_serving_record(written(tmp_path, *good, last | fault)), p95_ms=50)
    assert limit.listeners == 200
    assert str(limit).startswith("c=32 (p95 40.0 ms), the last load before c=64 (p95 80.0 ms, ")


def test_loads_after_a_bad_one_do_not_count(tmp_path: Path) -> None:
    limit = limit_of(record(tmp_path, ("c=1", 10, 10), ("c=8", 100, 60), ("c=32", 200, 20)), p95_ms=50)
    assert limit.listeners == pytest.approx(82)


def test_more_callers_with_less_audio_do_not_lower_the_limit(tmp_path: Path) -> None:
    assert limit_of(record(tmp_path, ("c=1", 100, 10), ("c=8", 90, 20)), p95_ms=50).listeners == 100


def test_a_bad_load_with_no_more_audio_than_a_good_one_does_not_raise_its_p95(tmp_path: Path) -> None:
    limit = limit_of(record(tmp_path, ("c=1", 50, 10), ("c=8", 100, 20), ("c=9", 100, 90)), p95_ms=30)
    assert (limit.listeners, limit.p95_ms(100)) == (100, 30)


def test_a_load_without_any_audio_is_not_good(tmp_path: Path) -> None:
    limit = limit_of(record(tmp_path, ("c=1", 100, 10), ("c=8", 0, None)), p95_ms=50)
    assert limit.listeners == 100


def test_open_loops_that_find_their_limit_come_before_closed_ones(tmp_path: Path) -> None:
    limit = limit_of(record(tmp_path, *CLOSED_ROWS, *OPEN_ROWS, ("rps=40", 190, 75)), p95_ms=50)
    assert limit.listeners == pytest.approx(170)


def test_closed_loops_count_where_open_ones_end_before_their_limit(tmp_path: Path) -> None:
    made = record(tmp_path, *CLOSED_ROWS, *OPEN_ROWS)
    assert limit_of(made, p95_ms=50).listeners == pytest.approx(225)
    assert limit_of(made, p95_ms=50, mode="rps").listeners == 150


def test_audio_of_a_request_is_that_of_the_open_loops(tmp_path: Path) -> None:
    assert record(tmp_path, *CLOSED_ROWS, *OPEN_ROWS).audio_seconds == pytest.approx(5)
    assert record(tmp_path, *CLOSED_ROWS).audio_seconds is None


@given(records(), MORE_MS, LOADS, LOADS)
def test_more_listeners_never_need_fewer_servers(made: ServingRecord, more_ms: float, one: int, other: int) -> None:
    limit, (fewer, more) = limit_of(made, made.rows[0].p95_ms + more_ms), sorted((one, other))
    assert plan(fewer, limit).servers <= plan(more, limit).servers


@given(records(), MORE_MS, MORE_MS, LOADS)
def test_a_stricter_p95_never_needs_fewer_servers(
    made: ServingRecord, one: float, other: float, listeners: int
) -> None:
    strict, lax = (made.rows[0].p95_ms + more_ms for more_ms in sorted((one, other)))
    assert plan(listeners, limit_of(made, lax)).servers <= plan(listeners, limit_of(made, strict)).servers


@given(records(), LOADS, st.integers(0, 20))
def test_a_spare_server_adds_exactly_one(made: ServingRecord, listeners: int, spare: int) -> None:
    limit = limit_of(made, 500)
    assert plan(listeners, limit, spare + 1).servers == plan(listeners, limit, spare).servers + 1


@given(records(), MORE_MS, LOADS)
def test_servers_that_remain_bear_the_load_within_the_measured_range(
    made: ServingRecord, more_ms: float, listeners: int
) -> None:
    p95_ms = made.rows[0].p95_ms + more_ms
    wanted = plan(listeners, limit_of(made, p95_ms), spare=2)
    assert wanted.listeners_per_server(lost=2) <= wanted.limit.listeners * (1 + 1e-9)
    assert wanted.limit.listeners <= max(row.audio_rate for row in made.rows)
    assert wanted.p95_ms() <= wanted.p95_ms(lost=2) <= p95_ms * (1 + 1e-6)


def test_bursts_are_ignored_and_searched_rates_count(tmp_path: Path) -> None:
    burst, first = fields("burst=8", 5, 30), fields("first", 5, 30)
    file = written(tmp_path, burst, first, fields("rps=10", 50, 15), search=[fields("rps=20", 100, 45)])
    assert [row.load for row in read_serving_record(file).rows] == ["rps=10", "rps=20"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"load": "c=8"}, "row 0, load c=8: no 'ttfa_p50_ms'"),
        (fields("c=8", 5, 30, errors="many"), "row 0, load c=8: invalid literal"),
        (fields("c=8", 5, 30, errors=None), "row 0, load c=8: int"),
        (fields("c=eight", 5, 30), "row 0, load c=eight: could not convert"),
        (fields("c=8", 5, -30), "row 0, load c=8: a time of -15.0 ms"),
        (fields("c=0", 5, 30), "row 0, load c=0: the load must be above 0"),
        (fields("c=8", 5, 30, servers=4), "row 0, load c=8: of 4 servers; the record must be of one"),
        (fields("burst=8", 5, 30), 'no row has a load "c=N" or "rps=N"'),
        ("c=8", 'no row has a load "c=N" or "rps=N"'),
    ],
)
def test_another_record_is_refused_with_the_row_and_the_field(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(ClientError) as refused:
        read_serving_record(written(tmp_path, row))
    assert f"record.json: {message}" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", 'no "rows"'),
        ('{"rows": {}}', 'no "rows"'),
        ('{"rows": []}', "no row"),
        (None, "No such"),
    ],
)
def test_another_file_is_refused_with_what_is_expected(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "other.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ClientError, match=message) as refused:
        read_serving_record(file)
    assert "it must be a record of scripts.benchmarks.serving" in str(refused.value)


def test_records_of_the_repository_load() -> None:
    for file in SERVING.parent.glob("serving-*.json"):
        assert read_serving_record(file).rows


def test_an_impossible_wish_is_refused_with_the_loads_of_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(written(tmp_path, *(fields(*row) for row in CLOSED_ROWS)))
    assert main(["capacity", "--record", file, "--listeners", "10", "--p95", "5"]) == ExitCode.USAGE
    assert "even the smallest load misses p95 5 ms" in (error := capsys.readouterr().err)
    assert "c=1 (p95 10.0 ms)" in error
    assert main(["capacity", "--record", file, "--listeners", "10", "--loads", "open"]) == ExitCode.USAGE
    assert "no open loop" in capsys.readouterr().err


def test_the_table_has_a_row_for_each_number_of_listeners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(written(tmp_path, *(fields(*row) for row in (*CLOSED_ROWS, *OPEN_ROWS))))
    wish = ["--listeners", "225,2250", "--spare", "1", "--price-per-hour", "4.5"]
    assert main(["capacity", "--record", file, *wish]) == ExitCode.OK
    *_, limit, titles, one, ten = capsys.readouterr().out.splitlines()
    assert limit.startswith("one server feeds 225 listeners: interpolated between")
    assert titles.split()[0] == "listeners"
    assert one.split() == ["225", "45", "2", "1", "112.5", "22.5", "50", "9", "0.04"]
    assert ten.replace("2 250", "2250").split() == ["2250", "450", "11", "1", "204.5", "41.8", "50", "49.5", "0.022"]


def test_json_has_the_plan_and_where_it_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(written(tmp_path, *(fields(*row) for row in CLOSED_ROWS)))
    assert main(["capacity", "--record", file, "--listeners", "1000", "--audio-seconds", "4", "--json"]) == ExitCode.OK
    printed = json.loads(capsys.readouterr().out)
    assert (printed["gpu"], printed["listeners_per_server"], printed["p95_ms"]) == ("G", 225, 50)
    assert printed["plans"] == [
        {
            "listeners": 1000,
            "requests_per_s": 250,
            "needed": 5,
            "spare": 0,
            "servers": 5,
            "listeners_per_server": 200,
            "p95_ms": 40,
            "p95_ms_without_spare": 40,
            "price_per_hour": None,
            "price_per_listener_hour": None,
        }
    ]


@pytest.mark.parametrize("wish", [["--listeners", "0"], ["--p95", "nan"], ["--spare", "-1"], ["--price-per-hour", "0"]])
def test_numbers_that_make_no_sense_are_refused(wish: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(["capacity", "--record", str(SERVING), "--listeners", "10", *wish])
    assert exit_code.value.code == ExitCode.USAGE
    assert f"argument {wish[0]}" in capsys.readouterr().err
