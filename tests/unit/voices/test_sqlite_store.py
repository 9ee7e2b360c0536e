"""The registry in a folder: its files, damage, locks of other processes."""

import os
import sqlite3
import time
from pathlib import Path

import pytest

from qwen3_tts_engine.request import InvalidRequest, RequestError, Unavailable
from qwen3_tts_engine.voices import sqlite_store
from qwen3_tts_engine.voices.sqlite_store import ARRAYS, DATABASE, SqliteStore
from qwen3_tts_engine.voices.store import NEW_COLUMNS
from tests.unit.voices.conftest import MIB, ORIGIN, make_voice


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "voices", max_voices=10, max_bytes=MIB)


def files(store: SqliteStore) -> list[str]:
    return sorted(path.name for path in (store._folder / ARRAYS).iterdir())


def test_the_file_of_an_add_that_fails_or_a_voice_that_is_deleted_is_removed(store: SqliteStore) -> None:
    record = store.add("anna", make_voice(1), 1.0, ORIGIN)
    full = SqliteStore(store._folder, 1, MIB)
    with pytest.raises(InvalidRequest):
        store.add("anna", make_voice(2), 1.0, ORIGIN)
    with pytest.raises(Unavailable):
        full.add("bert", make_voice(2), 1.0, ORIGIN)
    assert files(store) == [record.file]
    store.delete("anna")
    assert files(store) == []


def test_a_damaged_file_is_named_and_affects_only_its_voice(store: SqliteStore) -> None:
    damaged, missing, whole = (store.add(name, make_voice(), 1.0, ORIGIN) for name in "abc")
    path = store._folder / ARRAYS / damaged.file
    path.write_bytes(path.read_bytes()[:300])
    (store._folder / ARRAYS / missing.file).unlink()
    for record in (damaged, missing):
        with pytest.raises(RequestError, match=f"voice: '{record.name}': its file cannot be read"):
            store.load(record)
    assert store.load(whole).text == "text 0"
    store.delete("b")


def test_a_failed_write_leaves_no_files(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    store.list()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match=r"voices_folder: .*No space left"):
        store.add("anna", make_voice(), 1.0, ORIGIN)
    assert (store.list(), files(store)) == ([], [])


def test_removes_old_orphaned_files_at_the_start(store: SqliteStore) -> None:
    record = store.add("anna", make_voice(), 1.0, ORIGIN)
    store.close()
    arrays = store._folder / ARRAYS
    long_ago = time.time() - 2 * sqlite_store.ORPHAN_SECONDS
    for name, age in (("old.partial", long_ago), ("young.npz", time.time())):
        (arrays / name).write_bytes(b"")
        os.utime(arrays / name, (age, age))
    os.utime(arrays / record.file, (long_ago, long_ago))
    assert len(store.list()) == 1
    assert files(store) == sorted([record.file, "young.npz"])


def test_reports_an_unusable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="voices_folder: "):
        SqliteStore(tmp_path / "file" / "voices", 10, MIB).list()
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / DATABASE).write_bytes(b"this is no database" * 100)
    with pytest.raises(RequestError, match=r"voices_folder: .*not a database"):
        SqliteStore(folder, 10, MIB).list()


def test_the_table_has_a_unique_constraint_on_names(store: SqliteStore) -> None:
    store.add("anna", make_voice(), 1.0, ORIGIN)
    with sqlite3.connect(store._folder / DATABASE) as other, pytest.raises(sqlite3.IntegrityError):
        other.execute(f"INSERT INTO voices ({NEW_COLUMNS}) SELECT {NEW_COLUMNS} FROM voices")


def test_reads_do_not_wait_for_a_write_of_another_process(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "BUSY_SECONDS", 0.01)
    record = store.add("anna", make_voice(), 1.0, ORIGIN)
    with sqlite3.connect(store._folder / DATABASE, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.get("anna") == record
        assert store.list() == [record]
        with pytest.raises(Unavailable, match=r"voices_folder: .*locked"):
            store.add("bert", make_voice(), 1.0, ORIGIN)
        with pytest.raises(Unavailable, match=r"voices_folder: .*locked"):
            store.delete("anna")
        other.execute("ROLLBACK")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match=r"voices_folder: .*locked"):
            store.get("anna")
    assert files(store) == [record.file]


def test_reports_a_missing_folder_and_recovers_when_it_returns(store: SqliteStore) -> None:
    record = store.add("anna", make_voice(), 1.0, ORIGIN)
    elsewhere = store._folder.rename(store._folder.with_name("elsewhere"))
    for _ in range(2):
        with pytest.raises(Unavailable, match="the folder is gone"):
            store.get("anna")
        with pytest.raises(Unavailable, match="the folder is gone"):
            store.add("bert", make_voice(), 1.0, ORIGIN)
    with pytest.raises(Unavailable, match="its file cannot be read"):
        store.load(record)
    elsewhere.rename(store._folder)
    assert store.get("anna") == record
