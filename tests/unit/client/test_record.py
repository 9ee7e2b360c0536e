import json
from dataclasses import replace
from pathlib import Path

import pytest

from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.records.record import (
    SCHEMA_VERSION,
    ClientRecord,
    LoadRecord,
    RecordWriter,
    RequestRecord,
    ScrapeRecord,
    read_run,
)
from qwen3_tts_client.records.timeline import Timeline

TIMELINE = Timeline(5, None, [7, 9], [1920, 3840], 24_000, 480, 10, "ok")
REQUEST = RequestRecord(0, 3, "measure", 1, "de-04", "german", 30, TIMELINE)
LOAD = LoadRecord(0, "open", 2.5, 1, 2, 3)
CLIENT = ClientRecord(0, 1, 0.5, {"p50": 0.1, "p99": 2.0, "max": 3.0})
SCRAPE = ScrapeRecord(0, "before", 4, {'a{b="c"}': 1.0})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    writer = RecordWriter(path)
    writer.header({"commit": "c0ffee"})
    for record in (REQUEST, LOAD, CLIENT, SCRAPE):
        writer.append(record)
    return path


def test_reads_what_was_written(file: Path) -> None:
    for path in (file, file.parent):
        run = read_run(path)
        assert run.header["commit"] == "c0ffee"
        assert (run.requests, run.loads, run.clients, run.scrapes) == ([REQUEST], [LOAD], [CLIENT], [SCRAPE])


def test_skips_a_truncated_last_line(file: Path) -> None:
    lines = file.read_bytes()
    for cut in range(lines.rindex(b"\n", 0, -1) + 1, len(lines)):
        file.write_bytes(lines[:cut])
        assert read_run(file).requests == [REQUEST]


def test_an_interrupted_load_ends_with_its_last_request(file: Path) -> None:
    writer = RecordWriter(file)
    planned = LoadRecord(1, "closed", 4, 100, 900, end_ns=0)
    writer.append(planned)
    for end_ns in (300, 200):
        writer.append(replace(REQUEST, load=1, timeline=replace(TIMELINE, end_ns=end_ns)))
    assert read_run(file).loads[1] == replace(planned, stop_ns=300, end_ns=300, interrupted=True)
    # A later record with the actual end replaces the planned one.
    ended = replace(planned, end_ns=950)
    writer.append(ended)
    assert read_run(file).loads == [LOAD, ended]


def test_several_writers_append_to_one_file(file: Path) -> None:
    writers = [RecordWriter(file) for _ in range(3)]
    for _ in range(5):
        for writer in writers:
            writer.append(REQUEST)
    assert len(read_run(file).requests) == 16


def test_rejects_another_schema_version_and_names_its_commit(file: Path) -> None:
    file.write_text(json.dumps({"kind": "run", "schema_version": SCHEMA_VERSION + 1, "commit": "c0ffee"}) + "\n")
    with pytest.raises(ClientError, match=rf"schema version {SCHEMA_VERSION + 1}.*commit c0ffee") as raised:
        read_run(file)
    assert raised.value.code == ExitCode.USAGE


@pytest.mark.parametrize("content", [b"", b"hello\n", b"[]\n", b'{"kind": "run"}\n', b"\xff\n"])
def test_rejects_a_file_without_a_record_header(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ClientError, match="not the header of a benchmark record"):
        read_run(file)


@pytest.mark.parametrize("line", ["{", '{"kind": "song"}', '{"kind": "load"}', "3", '{"kind": "load", "x": 1}'])
def test_names_an_invalid_line(file: Path, line: str) -> None:
    with file.open("a") as lines:
        lines.write(line + "\n")
    with pytest.raises(ClientError, match=r"records\.jsonl:6: not a record"):
        read_run(file)


def test_rejects_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="No such file"):
        read_run(tmp_path)
