"""The registry in PostgreSQL: its schema, and a database that goes away, freezes, is locked and returns."""

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import psycopg
import pytest

from qwen3_tts_engine.config import ConfigError
from qwen3_tts_engine.request import InvalidRequest, Unavailable
from qwen3_tts_engine.voices import database, postgres_store
from qwen3_tts_engine.voices.postgres_store import PostgresStore
from qwen3_tts_engine.voices.store import NEW_COLUMNS
from tests.e2e import serving
from tests.postgres import PostgresServer
from tests.subprocesses import same_imports
from tests.unit.voices.conftest import MIB, ORIGIN, make_voice

# Longer than any wait of a test.
PATIENCE = 60.0
eventually = partial(serving.eventually, seconds=PATIENCE)
SECRET = "pass-word"
WAITS_FOR_LOCK = (
    "SELECT FROM pg_locks JOIN pg_database ON database = pg_database.oid "
    "WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
)


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresStore]:
    store = PostgresStore(dsn, 10, MIB)
    yield store
    store.close()


def is_back(store: PostgresStore) -> bool:
    try:
        store.list()
    except Unavailable:
        return False
    return True


def test_a_stopped_database_leaves_known_voices_and_returns(
    postgres: PostgresServer, store: PostgresStore, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    anna = store.add("anna", make_voice(), 1.0, ORIGIN)
    postgres.stop()
    try:
        assert store.get("anna") == anna
        with pytest.raises(Unavailable, match=database.AWAY):
            store.get("bert")
        with pytest.raises(Unavailable, match=database.AWAY):
            store.add("bert", make_voice(), 1.0, ORIGIN)
        with pytest.raises(Unavailable, match=database.AWAY):
            store.delete("anna")
        for call in (store.list, lambda: store.load(anna), lambda: store.check_free("bert")):
            with pytest.raises(Unavailable, match=database.AWAY):
                call()
        assert store.get("anna") == anna
    finally:
        postgres.start()
    # Deleted before this server has noticed that the database is back.
    postgres.execute("DELETE FROM qwen3_tts.voices", dsn)
    eventually(lambda: is_back(store))
    with pytest.raises(InvalidRequest, match="no voice is registered"):
        store.get("anna")
    store.add("anna", make_voice(), 1.0, ORIGIN)
    assert "is away" in caplog.text
    assert "answers again" in caplog.text


def test_an_outage_does_not_bring_back_a_voice_that_another_server_deleted_before_it(
    postgres: PostgresServer, store: PostgresStore, dsn: str
) -> None:
    anna, bert = (store.add(name, make_voice(), 1.0, ORIGIN) for name in ("anna", "bert"))
    other = PostgresStore(dsn, 10, MIB)
    assert other.get("anna") == anna
    assert other.get("bert") == bert
    store.delete("anna")
    eventually(lambda: "anna" not in other._known)
    postgres.stop()
    try:
        with pytest.raises(Unavailable, match=database.AWAY):
            other.get("anna")
        assert other.get("bert") == bert
    finally:
        postgres.start()
    other.close()


def test_ended_sessions_are_replaced_without_a_call(
    postgres: PostgresServer, store: PostgresStore, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    postgres.signal_sessions(dsn, signal.SIGTERM)
    eventually(lambda: "answers again" in caplog.text)
    assert store.list() == []


def test_a_frozen_database_delays_a_known_voice_once_and_is_cut_off(
    postgres: PostgresServer,
    store: PostgresStore,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its kernel still acknowledges what the server sends, so that only the deadline helps."""
    monkeypatch.setattr(database, "ANSWER_SECONDS", 5.0)
    caplog.set_level(logging.WARNING)
    anna = store.add("anna", make_voice(), 1.0, ORIGIN)
    monkeypatch.setattr(postgres_store, "KNOWN_SECONDS", 0.1)
    postgres.signal_sessions(dsn, signal.SIGSTOP)
    try:
        assert store.get("anna") == anna
        assert "is away" in caplog.text
        # New sessions are those of processes that run.
        eventually(lambda: is_back(store))
        assert store.get("anna") == anna
    finally:
        postgres.signal_sessions(dsn, signal.SIGCONT)


def test_a_locked_table_ends_calls_at_their_deadline(
    store: PostgresStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = store.add("anna", make_voice(), 1.0, ORIGIN)
    with psycopg.connect(dsn) as other, monkeypatch.context() as short:
        for name in ("KNOWN_SECONDS", "WRITE_SECONDS"):
            short.setattr(postgres_store, name, 0.1)
        other.execute("LOCK TABLE qwen3_tts.voices IN ACCESS EXCLUSIVE MODE")
        assert store.get("anna") == anna
        with pytest.raises(Unavailable, match=database.AWAY):
            store.add("bert", make_voice(), 1.0, ORIGIN)
    eventually(lambda: is_back(store))
    assert store.list() == [anna]


def test_reads_do_not_wait_for_another_servers_write(store: PostgresStore, dsn: str) -> None:
    anna = store.add("anna", make_voice(), 1.0, ORIGIN)
    with psycopg.connect(dsn) as other:
        other.execute(postgres_store.LOCK)
        other.execute("DELETE FROM qwen3_tts.voices")
        assert store.get("anna") == anna
        assert store.list() == [anna]
        assert store.load(anna).text == "text 0"
        other.rollback()


def test_a_database_that_refuses_writes_is_unavailable_for_them_alone(
    postgres: PostgresServer, dsn: str, store: PostgresStore
) -> None:
    """A standby refuses them, and a database whose disk is full."""
    anna = store.add("anna", make_voice(), 1.0, ORIGIN)
    postgres.execute("ALTER DATABASE " + dsn.rpartition("=")[2] + " SET default_transaction_read_only = on")
    standby = PostgresStore(dsn, 10, MIB)
    with pytest.raises(Unavailable, match="voices_dsn: cannot execute INSERT in a read-only transaction"):
        standby.add("bert", make_voice(), 1.0, ORIGIN)
    assert standby.get("anna") == anna
    standby.close()


def test_refuses_another_schema_version_with_what_to_do(
    postgres: PostgresServer, store: PostgresStore, dsn: str
) -> None:
    postgres.execute("UPDATE qwen3_tts.schema_version SET version = 7", dsn)
    with pytest.raises(ConfigError, match=r"^voices_dsn: the schema .* has version 7, this server needs 1: run the"):
        PostgresStore(dsn, 10, MIB)


def test_a_server_that_waited_for_another_to_make_the_schema_uses_it(dsn: str) -> None:
    with psycopg.connect(dsn) as other, ThreadPoolExecutor(1) as pool:
        other.execute(postgres_store.LOCK)
        other.execute(postgres_store.SCHEMA)
        opening = pool.submit(PostgresStore, dsn, 100, MIB)
        with psycopg.connect(dsn, autocommit=True) as watcher:
            eventually(lambda: watcher.execute(WAITS_FOR_LOCK).rowcount > 0)
        other.commit()
        store = opening.result(PATIENCE)
    store.add("anna", make_voice(), 1.0, ORIGIN)
    assert [record.name for record in store.list()] == ["anna"]
    store.close()


def test_a_schema_that_is_gone_is_not_made_again_by_a_running_server(
    postgres: PostgresServer, store: PostgresStore, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    anna = store.add("anna", make_voice(), 1.0, ORIGIN)
    postgres.execute("ALTER SCHEMA qwen3_tts RENAME TO elsewhere", dsn)
    postgres.signal_sessions(dsn, signal.SIGTERM)
    eventually(lambda: "the schema qwen3_tts is gone" in caplog.text)
    assert store.get("anna") == anna
    with pytest.raises(Unavailable, match=database.AWAY):
        store.list()
    postgres.execute("ALTER SCHEMA elsewhere RENAME TO qwen3_tts", dsn)
    eventually(lambda: is_back(store))
    assert store.list() == [anna]


def test_the_table_has_a_unique_constraint_on_names(store: PostgresStore, dsn: str) -> None:
    """It guards against programs that do not take the lock."""
    store.add("anna", make_voice(), 1.0, ORIGIN)
    columns = NEW_COLUMNS
    copy = columns.replace(" file", " file || 'x'")
    with psycopg.connect(dsn) as other, pytest.raises(psycopg.errors.UniqueViolation, match="name"):
        other.execute(
            f"INSERT INTO qwen3_tts.voices ({columns}, content) SELECT {copy}, content FROM qwen3_tts.voices".encode()
        )


def test_a_text_that_cannot_be_stored_is_refused(store: PostgresStore) -> None:
    voice = make_voice()
    with pytest.raises(InvalidRequest, match=r"voice: 'anna': cannot be stored: .*NUL"):
        store.add("anna", replace(voice, text="a\0b"), 1.0, ORIGIN)
    assert store.list() == []


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://me:{SECRET}/x@localhost/voices",
        f"postgresql://me:{SECRET}@localhost:x/voices",
        f"host=localhost password={SECRET} nonsense",
        f"postgresql://me:{SECRET}@localhost/voices?{SECRET}=1",
        f"postgresql://me:{SECRET}@127.0.0.1:1/voices",
        f"host=/no-such-folder password={SECRET}",
    ],
)
def test_a_database_that_cannot_be_used_is_refused_in_one_line_without_its_password(dsn: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PostgresStore(dsn, 10, MIB)
    message = str(refused.value)
    assert message.startswith("voices_dsn: ")
    assert "\n" not in message
    assert SECRET not in message


def test_a_user_who_may_not_create_the_schema_is_told_so(postgres: PostgresServer, dsn: str) -> None:
    postgres.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    with pytest.raises(ConfigError, match=r"permission denied for database .* let this user create the schema"):
        PostgresStore(dsn.replace("user=postgres", "user=guest"), 10, MIB)


def test_a_user_with_the_documented_privileges_can_use_a_schema_that_exists(
    postgres: PostgresServer, store: PostgresStore, dsn: str
) -> None:
    postgres.execute(
        "DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN; GRANT USAGE ON SCHEMA qwen3_tts TO clerk;"
        "GRANT SELECT ON ALL TABLES IN SCHEMA qwen3_tts TO clerk; GRANT INSERT, DELETE ON qwen3_tts.voices TO clerk",
        dsn,
    )
    clerk = PostgresStore(dsn.replace("user=postgres", "user=clerk"), 10, MIB)
    anna = clerk.add("anna", make_voice(), 1.0, ORIGIN)
    assert clerk.load(anna).text == "text 0"
    assert store.list() == clerk.list() == [anna]
    assert clerk.delete("anna") == anna
    clerk.close()
    postgres.execute("DROP OWNED BY clerk; DROP ROLE clerk", dsn)


def test_known_voices_are_bounded(store: PostgresStore, dsn: str) -> None:
    names = [f"voice {number}" for number in range(5)]
    for name in names:
        store.add(name, make_voice(), 1.0, ORIGIN)
    few = PostgresStore(dsn, 2, MIB)
    for name in names:
        few.get(name)
    assert list(few._known) == names[-2:]
    few.close()


def test_a_closed_store_refuses_and_leaves_no_session(postgres: PostgresServer, dsn: str) -> None:
    store = PostgresStore(dsn, 10, MIB)
    store.close()
    store.close()
    with pytest.raises(Unavailable):
        store.list()

    def has_no_session() -> bool:
        with psycopg.connect(postgres.dsn()) as connection:
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
            return connection.execute(query, (dsn.rpartition("=")[2],)).fetchone() == (0,)

    eventually(has_no_session)


def test_a_server_without_a_database_does_not_import_psycopg() -> None:
    code = "import sys; from qwen3_tts_engine import startup; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=same_imports(), check=False).returncode == 0
