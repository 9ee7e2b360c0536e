"""Voices in PostgreSQL, which the servers of a fleet share. Requires the package psycopg."""

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict

from qwen3_tts_engine.config import ConfigError
from qwen3_tts_engine.request import InvalidRequest, Unavailable
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices.arrays import pack, unpack
from qwen3_tts_engine.voices.database import Database, one_line
from qwen3_tts_engine.voices.record import Origin, VoiceRecord
from qwen3_tts_engine.voices.store import COLUMNS, NEW_COLUMNS, Quota, taken, unknown

SCHEMA_VERSION = 1
# Any number that no other program uses for an advisory lock in this database.
LOCK = "SELECT pg_advisory_xact_lock(5133977001)"
# Not to_regclass: it answers from the session's cache, which a schema made while this one waited for LOCK is not in.
HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_tables WHERE (schemaname, tablename) = ('qwen3_tts', 'schema_version'))"
# EXTERNAL: no compression, since arrays of random bits do not shrink. Collation C: the order of SQLite's names.
SCHEMA = f"""
CREATE SCHEMA IF NOT EXISTS qwen3_tts;
CREATE TABLE qwen3_tts.schema_version (version integer PRIMARY KEY);
INSERT INTO qwen3_tts.schema_version VALUES ({SCHEMA_VERSION});
CREATE TABLE qwen3_tts.voices (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    hidden_size integer NOT NULL,
    speaker_digest text NOT NULL,
    codec_digest text NOT NULL,
    ref_text text,
    reference_seconds double precision NOT NULL,
    created double precision NOT NULL,
    file text NOT NULL UNIQUE,
    num_bytes bigint NOT NULL,
    content bytea NOT NULL
);
ALTER TABLE qwen3_tts.voices ALTER COLUMN content SET STORAGE EXTERNAL;
"""
FIND = f"SELECT {COLUMNS} FROM qwen3_tts.voices WHERE name = %s"
LIST = f"SELECT {COLUMNS} FROM qwen3_tts.voices ORDER BY name"
USED = "SELECT count(*), coalesce(sum(num_bytes), 0)::bigint FROM qwen3_tts.voices"
INSERT = f"""
INSERT INTO qwen3_tts.voices ({NEW_COLUMNS}, content) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %b)
RETURNING {COLUMNS}
"""
DELETE = f"DELETE FROM qwen3_tts.voices WHERE name = %s RETURNING {COLUMNS}"
LOAD = "SELECT content FROM qwen3_tts.voices WHERE file = %s"
EXISTING = "SELECT file FROM qwen3_tts.voices WHERE file = ANY(%s)"
DIGEST = "SELECT encode(sha256(content), 'hex') FROM qwen3_tts.voices WHERE file = %s"
# A call's limits. After the first, a known voice is spoken without the database.
KNOWN_SECONDS, READ_SECONDS, WRITE_SECONDS = 0.25, 2.0, 5.0


class PostgresStore:
    """A VoiceStore for servers that share a database; voices that this server has seen are known without it."""

    def __init__(self, dsn: str, max_voices: int, max_bytes: int) -> None:
        """Creates the schema in a database that has none. Raises ConfigError when the database cannot be used."""
        self._quota = Quota(max_voices, max_bytes)
        self._known: OrderedDict[str, VoiceRecord] = OrderedDict()
        self._lock = threading.Lock()
        self._was_opened = False
        _check_dsn(dsn)
        try:
            self._database = Database(dsn, self._check_schema, self._forget_deleted)
        except psycopg.Error as error:
            raise ConfigError(
                f"voices_dsn: {one_line(error)}: start the database and let this user create the schema qwen3_tts in "
                "it, or correct the setting"
            ) from None
        self._was_opened = True

    def add(self, name: str, voice: Voice, reference_seconds: float, origin: Origin) -> VoiceRecord:
        content = pack(voice)
        new = (voice.text, reference_seconds, time.time(), f"{uuid.uuid4().hex}.npz", len(content))
        with self._writing(name) as connection:
            _check_free(connection, name)
            count, used = _row(connection, USED)
            self._quota.check(count, used, len(content))
            record = VoiceRecord(*_row(connection, INSERT, name, *asdict(origin).values(), *new, content))
        self._remember(name, record)
        return record

    def check_free(self, name: str) -> None:
        with self._database.connection(READ_SECONDS) as connection:
            _check_free(connection, name)

    def get(self, name: str) -> VoiceRecord:
        """The record as the database has it now, or else, while the database does not answer, as it was last seen."""
        known = self._known.get(name)
        try:
            with self._database.connection(KNOWN_SECONDS if known else READ_SECONDS) as connection:
                row = connection.execute(FIND, (name,)).fetchone()
        except Unavailable:
            if known is None:
                raise
            return known
        except psycopg.DataError:  # a name with a NUL
            raise unknown(name) from None
        record = VoiceRecord(*row) if row else None
        self._remember(name, record)
        if record is None:
            raise unknown(name)
        return record

    def list(self) -> list[VoiceRecord]:
        with self._database.connection(READ_SECONDS) as connection:
            return [VoiceRecord(*row) for row in connection.execute(LIST)]

    def delete(self, name: str) -> VoiceRecord:
        with self._writing(name) as connection:
            row = connection.execute(DELETE, (name,)).fetchone()
        self._remember(name, None)
        if row is None:
            raise unknown(name)
        return VoiceRecord(*row)

    def load(self, record: VoiceRecord) -> Voice:
        with self._database.connection(WRITE_SECONDS) as connection:
            row = connection.execute(LOAD, (record.file,), binary=True).fetchone()
        if row is None:
            raise unknown(record.name)
        return unpack(row[0], record)

    def copy(self, record: VoiceRecord, content: bytes) -> None:
        """Add a voice of another registry with its date and origin, beyond all limits. Raises InvalidRequest."""
        with self._writing(record.name) as connection:
            connection.execute(INSERT, (*astuple(record)[1:], content))

    def digest(self, file: str) -> str | None:
        """SHA-256 of a voice's file as the database has it."""
        with self._database.connection(WRITE_SECONDS) as connection:
            row = connection.execute(DIGEST, (file,)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        self._database.close()

    def _remember(self, name: str, record: VoiceRecord | None) -> None:
        with self._lock:
            self._known.pop(name, None)
            if record:
                self._known[name] = record
            if len(self._known) > self._quota.max_voices:
                self._known.popitem(last=False)

    def _forget_deleted(self, connection: psycopg.Connection) -> None:
        """Keeps an outage from bringing back what another server deleted before it."""
        with self._lock:
            known = {record.file: name for name, record in self._known.items()}
        there = {file for (file,) in connection.execute(EXISTING, (list(known),))}
        with self._lock:
            for file in known.keys() - there:
                if (record := self._known.get(known[file])) and record.file == file:
                    del self._known[known[file]]

    def _check_schema(self, connection: psycopg.Connection) -> None:
        """Raises ConfigError for another version of the schema."""
        if not _value(connection, HAS_SCHEMA):
            if self._was_opened:
                # A new one would be empty, and every voice unknown.
                raise ConfigError("voices_dsn: the schema qwen3_tts is gone: restore it, or restart the server")
            with connection.transaction():
                connection.execute(LOCK)
                if not _value(connection, HAS_SCHEMA):
                    connection.execute(SCHEMA)
        found = _value(connection, "SELECT max(version) FROM qwen3_tts.schema_version")
        if found != SCHEMA_VERSION:
            raise ConfigError(
                f"voices_dsn: the schema qwen3_tts of the database {connection.info.dbname!r} has version {found}, "
                f"this server needs {SCHEMA_VERSION}: run the release that made it, or name another database"
            )

    @contextmanager
    def _writing(self, name: str) -> Iterator[psycopg.Connection]:
        """A transaction that no other server's overlaps; raises InvalidRequest for a value that cannot be stored."""
        try:
            with self._database.connection(WRITE_SECONDS) as connection, connection.transaction():
                connection.execute(LOCK)
                yield connection
        except psycopg.errors.UniqueViolation:
            raise taken(name) from None
        except psycopg.DataError as error:
            raise InvalidRequest("voice", name, f"cannot be stored: {one_line(error)}") from None


def _check_dsn(dsn: str) -> None:
    """Raises ConfigError, without a part of the text, which may hold a password."""
    try:
        ports = str(conninfo_to_dict(dsn).get("port") or "")
    except psycopg.ProgrammingError:
        ports = "none"
    # A password with an unescaped / or @ is read as a port, which libpq would quote.
    if not all(port.isdigit() for port in filter(None, ports.split(","))):
        example = "postgresql://user:password@host:5432/database, special characters percent-encoded"
        raise ConfigError(f"voices_dsn: not a connection string of PostgreSQL, such as {example}")


def _check_free(connection: psycopg.Connection, name: str) -> None:
    if connection.execute("SELECT FROM qwen3_tts.voices WHERE name = %s", (name,)).rowcount:
        raise taken(name)


def _row(connection: psycopg.Connection, query: LiteralString, *values: Any) -> tuple[Any, ...]:
    row = connection.execute(query, values).fetchone()
    assert row is not None, "the query returns one row"
    return row


def _value(connection: psycopg.Connection, query: LiteralString) -> Any:
    return _row(connection, query)[0]
