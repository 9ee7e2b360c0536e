"""migrate_voices copies a folder's voices into a database: whole, once, and only where names are free."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

import scripts.server.migrate_voices as command
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices.postgres_store import PostgresStore
from qwen3_tts_engine.voices.record import Origin, VoiceRecord
from qwen3_tts_engine.voices.sqlite_store import ARRAYS, SqliteStore
from tests.postgres import PostgresServer
from tests.unit.voices.test_store import assert_same

MIB = 1 << 20
ORIGIN = Origin(8, "speaker", "codec")


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def target(dsn: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(dsn, 100, MIB)) as store:
        yield store


@pytest.fixture
def source(tmp_path: Path) -> SqliteStore:
    store = SqliteStore(tmp_path / "voices", 100, MIB)
    for number in range(8):
        voice = Voice(np.full(8, number, np.float32), np.full((3, 16), number, np.int32), f"text {number}")
        store.add(f"voice {number}", voice if number % 2 else voice.alone(), number + 0.5, ORIGIN)
    return store


def migrate(source: SqliteStore, dsn: str) -> Result:
    return CliRunner().invoke(_app(), ["--from", str(source._folder), "--to", dsn])


def _app() -> typer.Typer:
    app = typer.Typer()
    app.command()(command.main)
    return app


def without_ids(records: list[VoiceRecord]) -> list[VoiceRecord]:
    return [replace(record, id=0) for record in records]


def test_all_voices_arrive_with_dates_origins_and_arrays_and_a_repeat_copies_none(
    source: SqliteStore, target: PostgresStore, dsn: str
) -> None:
    first = migrate(source, dsn)
    assert (first.exit_code, first.stdout) == (0, "8 voices copied, 0 were there before; all 8 verified\n")
    assert without_ids(target.list()) == without_ids(source.list())
    for old, new in zip(source.list(), target.list(), strict=True):
        assert_same(target.load(new), source.load(old))
    again = migrate(source, dsn)
    assert again.stdout == "0 voices copied, 8 were there before; all 8 verified\n"
    assert len(source.list()) == 8


def test_a_run_continues_where_one_was_broken_off(source: SqliteStore, target: PostgresStore, dsn: str) -> None:
    record = source.get("voice 3")
    target.copy(record, source.read(record))
    target.add("another", Voice(np.zeros(8, np.float32)), 1.0, ORIGIN)
    assert migrate(source, dsn).stdout == "7 voices copied, 1 were there before; all 8 verified\n"
    assert len(target.list()) == 9


def test_a_name_of_another_voice_in_the_database_is_refused_before_any_copy(
    source: SqliteStore, target: PostgresStore, dsn: str
) -> None:
    target.add("voice 7", Voice(np.zeros(8, np.float32)), 1.0, ORIGIN)
    refused = migrate(source, dsn)
    assert refused.exit_code == 1
    assert "1 names belong to other voices in the database: 'voice 7': delete them on one of" in refused.stderr
    assert len(target.list()) == 1


def test_a_damaged_voice_is_named(source: SqliteStore, target: PostgresStore, dsn: str) -> None:
    (source._folder / ARRAYS / source.get("voice 5").file).write_bytes(b"damaged")
    refused = migrate(source, dsn)
    assert refused.exit_code == 1
    assert "voice: 'voice 5': its file cannot be read" in refused.stderr


def test_a_copy_that_differs_is_named(
    source: SqliteStore, target: PostgresStore, dsn: str, postgres: PostgresServer
) -> None:
    migrate(source, dsn)
    postgres.execute("UPDATE qwen3_tts.voices SET content = 'x' WHERE name = 'voice 2'", dsn)
    refused = migrate(source, dsn)
    assert refused.exit_code == 1
    assert "'voice 2': differs in the database: delete it there and run this again" in refused.stderr


def test_a_folder_without_voices_is_refused_and_not_created(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    refused = CliRunner().invoke(_app(), ["--from", str(folder), "--to", "host=/none"])
    assert refused.exit_code == 1
    assert f"{folder}/voices.sqlite3: missing" in refused.stderr
    assert not folder.exists()


def test_a_database_that_is_not_there_is_refused_in_one_line(source: SqliteStore) -> None:
    refused = migrate(source, "host=/no-such-folder")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("voices_dsn: ")
    assert refused.stderr.count("\n") == 1
