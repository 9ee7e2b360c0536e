"""Figures on the pages of docs/benchmarks match the records beside them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import plot_cost

FOLDER = plot_cost.BENCHMARKS
PAGES = (FOLDER / "README.md", FOLDER.parents[1] / "README.md")
# By how many words of a hundred a long text may fall short of its sentences spoken alone.
POINTS = 3
RECORDS = sorted(path.name for path in FOLDER.glob("*.json"))


def record(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return loaded


def table(page: Path, title: str) -> list[list[str]]:
    """The cells of the only table with a column of this title, row by row."""
    tables = re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE)
    [found] = [lines.splitlines() for lines in tables if f"| {title} |" in lines]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[2:]]


def numbers(cell: str) -> list[float]:
    return [float(number.replace(" ", "")) for number in re.findall(r"\d[\d ]*\d\.?\d*|\d+\.?\d*", cell)]


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_names_its_machine_command_and_commit(name: str) -> None:
    found = record(name)
    assert found["gpu"]
    assert re.match(r"python -m scripts\.(benchmark_|benchmarks\.|lab\.|soak )", found["command"])
    assert re.fullmatch(r"[0-9a-f]{40}", found["commit"])
    assert found.get("rows") or found.get("requests") or found.get("utterances") or (found["plan"] and found["serving"])


def test_word_times_table_matches_its_record() -> None:
    rows = record("word-times.json")["rows"]
    heads, guesses = ([row for row in rows if row["method"] == method] for method in ("heads", "rate"))
    written = table(FOLDER.parent / "word-times.md", "right words, %")
    assert [cells[:3] for cells in written] == [[row["text"], row["layout"], row["speaker"]] for row in heads]
    for (_, _, _, *cells), found, guess in zip(written, heads, guesses, strict=True):
        columns = ("sentences", "words", "without_time", "median_ms", "p90_ms", "within_80_ms", "within_160_ms")
        figures = [found[column] for column in (*columns, "words_right", "end_median_ms", "end_p90_ms")]
        figures += [guess[column] for column in ("median_ms", "p90_ms", "words_right")]
        figures = [100 * value if isinstance(value, float) else value for value in figures]
        assert [number for cell in cells for number in numbers(cell)] == pytest.approx(figures, abs=0.051)


@pytest.mark.parametrize("name", ["word-times.json", "word-times-h200.json"])
def test_sentence_about_all_word_times_matches_its_record(name: str) -> None:
    rows = [row for row in record(name)["rows"] if row["method"] == "heads"]
    median = max(row["median_ms"] for row in rows)
    within, right = (100 * min(row[column] for row in rows) for column in ("within_160_ms", "words_right"))
    page = " ".join((FOLDER.parent / "word-times.md").read_text().split())
    figures = f"{median} ms, {within:.1f} % or more within 160 ms, and the right words in {right:.1f} % or more"
    assert f"every row has a median of at most {figures}" in page.lower()
    assert (rows[0]["sentences"] >= 200, median <= 50, within >= 90, right >= 88) == (True, True, True, True)


def test_sentence_about_late_word_times_matches_its_record() -> None:
    page = " ".join((FOLDER.parent / "word-times.md").read_text().split())
    rows = [row for row in record("word-times.json")["rows"] if row["method"] == "heads"]
    late = {layout: [row["bias_ms"] for row in rows if row["layout"] == layout] for layout in ("full", "streaming")}
    whole, streamed = (f"by {min(found)} to {max(found)} ms in" for found in late.values())
    assert f"{whole} whole texts, and {streamed} streamed ones" in page


def test_sentence_about_long_texts_matches_its_record() -> None:
    found, text = record("long-form.json"), " ".join((FOLDER.parent / "client.md").read_text().split())
    parts, changes = found["parts"], found["changes"]
    assert {row["part"] for row in found["rows"]} == set(range(1, parts + 1))
    rate, level = (max(row[name] for row in changes) for name in ("rate_percent_most", "loudness_db_most"))
    assert f"Over the {parts} parts of a text" in text
    assert f"differ by at most {rate} % in rate and {level} dB in loudness" in text
    assert (rate <= 10, level <= 2) == (True, True)


def test_table_of_the_cost_of_word_times_matches_its_record() -> None:
    rows = table(FOLDER.parent / "word-times.md", "all with word times, ms")
    measured = record("talker-words-h200.json")["rows"]
    assert len(rows) == len(measured)
    for (batch, plain, tracked, more), row in zip(rows, measured, strict=True):
        without, with_times = row["ms_per_frame"], row["with_word_times_ms_per_frame"]
        written = [int(batch), float(plain), float(tracked)]
        assert written == pytest.approx([row["batch"], without, with_times], abs=0.006)
        assert float(more) == pytest.approx(100 * (with_times / without - 1), abs=0.06)


def test_talker_table_matches_its_record() -> None:
    measured = {row["batch"]: row["ms_per_frame"] for row in record("talker-h200.json")["rows"]}
    rows = table(PAGES[0], "floor, ms a frame")
    assert len(rows) > 5
    for batch, _, milliseconds, _ in rows:
        assert float(milliseconds) == pytest.approx(measured[int(batch)], abs=0.006)


def test_batch_invariant_table_matches_its_records() -> None:
    plain, invariant = (
        {row["batch"]: row["ms_per_frame"] for row in record(f"talker{kind}-h200.json")["rows"]}
        for kind in ("", "-invariant")
    )
    rows = table(PAGES[0], "ms a frame, batch-invariant")
    assert len(rows) > 5
    for streams, milliseconds, share in rows:
        batch = int(streams)
        assert float(milliseconds) == pytest.approx(invariant[batch], abs=0.006)
        assert numbers(share) == pytest.approx([100 * invariant[batch] / plain[batch]], abs=0.6)


def test_codec_table_matches_its_record() -> None:
    measured = {f"{row['batch']} x {row['frames']}": row for row in record("codec-h200.json")["rows"]}
    rows = table(PAGES[0], "rows x frames")
    assert len(rows) > 3
    for shape, milliseconds, microseconds in rows:
        assert float(milliseconds) == pytest.approx(measured[shape]["ms"], abs=0.006)
        assert float(microseconds) == pytest.approx(measured[shape]["us_per_frame"], abs=0.6)


@pytest.mark.parametrize(
    ("page", "title", "name"),
    [
        (PAGES[0], "stalled over 50 ms", "serving-h200.json"),
        (PAGES[0], "stalled over 50 ms, H100", "serving-h100.json"),
        (PAGES[1], "stalled over 50 ms", "serving-h200.json"),
    ],
)
def test_serving_tables_match_their_record(page: Path, title: str, name: str) -> None:
    measured = {row["load"]: row for row in record(name)["rows"]}
    rows = table(page, title)
    assert len(rows) >= 3
    for load, first_audio, factor, throughput, stalled, *codec in rows:
        row = measured[load]
        if codec:
            calls = [row[name] for name in ("codec_rows", "codec_call_ms") if name in row]
            assert [number for cell in codec for number in numbers(cell)] == calls
        assert numbers(first_audio) == pytest.approx([row["ttfa_p50_ms"], row["ttfa_p95_ms"]], rel=0.015)
        assert float(factor) == pytest.approx(row["rtf_p50"], abs=0.0006)
        assert float(throughput) == pytest.approx(row["audio_s_per_s"], abs=0.6)
        assert numbers(stalled)[:2] == [row["stalled_over_50ms"], row["requests"]]


def test_table_of_turns_matches_its_record() -> None:
    measured = {row["load"]: row for row in record("serving-in-turn-h200.json")["rows"]}
    rows = table(PAGES[0], "load in turn")
    assert len(rows) > 3
    columns = ("ttfa_p50_ms", "ttfa_p95_ms", "rtf_p50", "audio_s_per_s", "stalled_over_50ms", "requests")
    for load, *cells in rows:
        found = [number for cell in cells for number in numbers(cell)]
        assert found == pytest.approx([measured[load][column] for column in columns], rel=0.015, abs=0.06)


def test_gateway_table_matches_its_record() -> None:
    rows = table(FOLDER.parent / "gateway.md", "on an H200")
    measured = record("gateway-h200.json")["rows"]
    columns = ("ttfa_p50_ms", "ttfa_p95_ms", "audio_s_per_s", "stalled_over_50ms", "requests")
    assert [cells[:3] for cells in rows] == [[row["path"], row["load"], row["format"]] for row in measured]
    for cells, row in zip(rows, measured, strict=True):
        found = [number for cell in cells[3:] for number in numbers(cell)]
        assert found == pytest.approx([row[column] for column in columns], rel=0.015, abs=0.06)


def test_demo_voice_tables_match_their_record() -> None:
    page, parts = FOLDER.parent / "demo-voice.md", record("demo-voice.json")["parts"]
    words = parts["words"]
    figures = (
        ("teacher", "wer", "teacher_wer"),
        ("whole", "wer", "wer"),
        ("streamed", "wer", "streamed_wer"),
        ("whole", "retrieval", "retrieval"),
        ("whole", "durations_within_20_percent", "durations_within_20_percent"),
    )
    rows = table(page, "words, on two CPU cores")
    for (_, *cells), (kind, figure, mean) in zip(rows, figures, strict=True):
        voices = words["voices"][kind].values()
        assert [float(cell) for cell in cells] == [*(voice[figure] for voice in voices), words[mean]]
    for load, *cells in table(page, "first sound, p50 in ms"):
        sounds = parts["ends" if "H200" in load else "words"]["first_sound"][load.split(",")[0]]
        measured = [sounds[kind][time] for kind in ("trimmed", "untrimmed") for time in ("ttfa_ms", "audible_ttfa_ms")]
        assert [float(cell) for cell in cells] == pytest.approx(measured, abs=0.051)


def test_long_texts_table_matches_its_record() -> None:
    found = record("long-texts.json")
    rows = table(FOLDER.parent / "demo-voice.md", "sentences a text")
    measured = [*found["rows"], found | {"sentences_a_text": "all"}]
    assert [row[0] for row in rows] == [row["sentences_a_text"] for row in measured]
    for (_, texts, words, *cells), row in zip(rows, measured, strict=True):
        assert numbers(f"{texts} words {words}") == [row["texts"], row["words"]]
        shares = [100 * row["words_heard"], 100 * row["words_heard_alone"]]
        assert [float(cell) for cell in cells[:2]] == pytest.approx(shares, abs=0.051)
        assert [float(cell) for cell in cells[2:]] == pytest.approx([row["seconds"], row["seconds_alone"]], abs=0.51)
        assert shares[0] >= shares[1] - POINTS


def test_quickstart_sentences_match_their_record() -> None:
    found, text = record("quickstart.json"), " ".join(PAGES[1].read_text().split())
    first, second = found["rows"]
    gigabytes = (first["downloaded_mb"], sum(found["disk_mb"].values()), first["peak_memory_mb"])
    downloaded, disk, memory = (f"{count / 1e3:.1f} GB" for count in gigabytes)
    assert f"downloads {downloaded}, fills {disk} of disk and takes {memory} of memory" in text
    assert f"it has spoken in {first['seconds'] / 60:.0f} minutes, a second one in {second['seconds']} s" in text


def test_codec_call_table_matches_its_record() -> None:
    measured = {row["load"]: row for row in record("serving-in-turn-h200.json")["rows"]}
    rows = table(PAGES[0], "rows a call")
    assert len(rows) >= 3
    for load, *cells in rows:
        row = measured[load]
        call, own = row["codec_call_ms"], row["codec_own_ms"]
        assert [float(cell) for cell in cells] == pytest.approx([row["codec_rows"], call, own, call - own], abs=0.006)


def test_table_of_forms_matches_its_record() -> None:
    rows = {(row["load"], row["form"]): row for row in record("serving-forms-h200.json")["rows"]}
    columns = ("ttfa_p50_ms", "ttfa_p95_ms", "audio_s_per_s")
    written = table(PAGES[0], "fused kernels, direct line")
    assert len(written) == len(rows) // 3 - 1  # without the first request
    for load, *cells in written:
        graphs, plan, old = (rows[load, form] for form in ("python", "tensorrt", "python, commit 3edb45c"))
        measured = [graphs[column] for column in (*columns, "codec_call_ms")]
        measured += [plan[column] for column in (*columns, "codec_call_ms")] + [old[column] for column in columns]
        assert [number for cell in cells for number in numbers(cell)] == pytest.approx(measured, rel=0.015)


def test_table_of_sizes_on_a_cpu_matches_its_record() -> None:
    rows = record("cpu-sizes.json")["rows"]
    written = table(FOLDER.parent / "cpu.md", "distance of logits")
    assert [cells[:2] for cells in written] == [[row["model"].upper(), row["weights"]] for row in rows]
    for (_, _, *cells), row in zip(written, rows, strict=True):
        columns = [row[name] for name in ("tick_ms", "memory_gib", "equal_codes", "logits_distance")]
        assert [float(cell) for cell in cells] == pytest.approx(columns, rel=0.02)


def test_fleet_table_matches_its_record() -> None:
    rows = record("fleet-h200-x4.json")["rows"]
    columns = ("servers", "requests", "ttfa_p50_ms", "ttfa_p95_ms", "audio_s_per_s", "stalled_over_50ms", "errors")
    written = table(FOLDER.parent / "fleet.md", "errors")
    assert [cells[1:3] for cells in written] == [[row["path"], row["load"]] for row in rows]
    for (servers, _, _, *cells), row in zip(written, rows, strict=True):
        found = [number for cell in (servers, *cells) for number in numbers(cell)]
        assert found == pytest.approx([row[column] for column in columns], rel=0.015)


def test_plugin_tables_match_their_record() -> None:
    found = record("tensorrt-h200.json")
    plan = {f"{row['batch']} x {row['frames']}": row for row in found["plan"]}
    shapes = table(PAGES[0], "plan with the plugin, rows x frames")
    assert len(shapes) > 3
    for shape, milliseconds, microseconds, snr_db in shapes:
        row = plan[shape]
        assert float(microseconds) == pytest.approx(row["us_per_frame"], abs=0.6)
        assert float(milliseconds) * 1000 == pytest.approx(row["us_per_frame"] * row["batch"] * row["frames"], rel=0.01)
        assert float(snr_db) == row["snr_db"]
    loads = table(PAGES[0], "TTFA p50 / p95 through the plugin, ms")
    assert [load for load, *_ in loads] == [row["load"] for row in found["serving"]]
    for (_, first_audio, factor, throughput, stalled), row in zip(loads, found["serving"], strict=True):
        assert numbers(first_audio) == pytest.approx([row["ttfa_p50_ms"], row["ttfa_p95_ms"]], rel=0.015)
        assert float(factor) == pytest.approx(row["rtf_p50"], abs=0.0006)
        assert float(throughput) == pytest.approx(row["audio_s_per_s"], abs=0.6)
        assert numbers(stalled)[:2] == [row["stalled_over_50ms"], row["requests"]]


def test_sentences_about_mixed_calls_match_their_record() -> None:
    found, text = record("tensorrt-h200.json"), " ".join(PAGES[0].read_text().split())
    mixed, first = found["mixed_calls"], found["first_request"]
    assert (mixed["errors"], mixed["wrong"]) == (0, 0)
    assert f"{mixed['calls']:,}".replace(",", " ") + " calls of mixed shapes from eight callers" in text
    assert f"worst SNR {mixed['worst_snr_db']} dB, {mixed['calls_per_s']} calls a second" in text
    assert f"in {found['proof_seconds']:.2f} s" in text
    assert f"took {first['first_ms']} ms to its first audio, the median" in text
    assert f"of the twelve after it {first['median_ms']}." in text


def test_the_plot_shows_every_load(tmp_path: Path) -> None:
    output = tmp_path / "cost.svg"
    plot_cost.main(output=output)
    text = output.read_text()
    assert all(f">{label}<" in text for label in ("one frame", "TTFA p50", "TTFA p95", "512"))
