"""Voices in a folder: metadata in SQLite, the arrays of each voice in a file of its own."""

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from qwen3_tts_engine.request import RequestError, Unavailable
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices.arrays import pack, unpack, unreadable
from qwen3_tts_engine.voices.record import Origin, VoiceRecord
from qwen3_tts_engine.voices.store import COLUMNS, NEW_COLUMNS, Quota, taken, unknown

DATABASE, ARRAYS = "voices.sqlite3", "arrays"
# Timeout of a write behind another process's; reads wait only while a write commits.
BUSY_SECONDS = 2.0
# Age above which a file without a row is an orphan of a crashed server; a younger one may still get its row.
ORPHAN_SECONDS = 3600.0
# A write transaction takes the write lock at its start, so that its reads stay valid.
READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"
TABLE = """
CREATE TABLE IF NOT EXISTS voices (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    hidden_size INTEGER NOT NULL,
    speaker_digest TEXT NOT NULL,
    codec_digest TEXT NOT NULL,
    ref_text TEXT,
    reference_seconds REAL NOT NULL,
    created REAL NOT NULL,
    file TEXT NOT NULL,
    num_bytes INTEGER NOT NULL
)
"""


class SqliteStore:
    """A VoiceStore for the processes that share a folder, which is created on demand."""

    def __init__(self, folder: Path, max_voices: int, max_bytes: int) -> None:
        self._folder, self._quota = folder, Quota(max_voices, max_bytes)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._was_opened = False

    def add(self, name: str, voice: Voice, reference_seconds: float, origin: Origin) -> VoiceRecord:
        self.check_free(name)
        content = pack(voice)
        file, num_bytes = self._write(content), len(content)
        values = (*asdict(origin).values(), voice.text, reference_seconds, time.time(), file, num_bytes)
        try:
            with self._database(WRITE) as database:
                self._check_room(database, num_bytes)
                marks = ", ".join("?" * (1 + len(values)))
                database.execute(f"INSERT INTO voices ({NEW_COLUMNS}) VALUES ({marks})", (name, *values))
                return self._find(database, name)
        except sqlite3.IntegrityError:
            self._remove(file)
            raise taken(name) from None
        except BaseException:
            self._remove(file)
            raise

    def check_free(self, name: str) -> None:
        with self._database() as database:
            self._check_free(database, name)

    def get(self, name: str) -> VoiceRecord:
        with self._database() as database:
            return self._find(database, name)

    def list(self) -> list[VoiceRecord]:
        with self._database() as database:
            return [VoiceRecord(*row) for row in database.execute(f"SELECT {COLUMNS} FROM voices ORDER BY name")]

    def delete(self, name: str) -> VoiceRecord:
        with self._database(WRITE) as database:
            record = self._find(database, name)
            database.execute("DELETE FROM voices WHERE id = ?", (record.id,))
        self._remove(record.file)
        return record

    def load(self, record: VoiceRecord) -> Voice:
        return unpack(self.read(record), record)

    def read(self, record: VoiceRecord) -> bytes:
        """The voice's file."""
        try:
            return (self._folder / ARRAYS / record.file).read_bytes()
        except OSError as error:
            kind = RequestError if self._folder.is_dir() else Unavailable
            raise unreadable(record, error, kind) from error

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    @contextmanager
    def _database(self, begin: str = READ) -> Iterator[sqlite3.Connection]:
        """One transaction, isolated from other writes."""
        with self._lock:
            try:
                if not (self._folder / DATABASE).exists():
                    self._disconnect()
                self._connection = self._connection or self._open()
                with self._connection:
                    self._connection.execute(begin)
                    yield self._connection
            except sqlite3.IntegrityError:
                raise
            except (OSError, sqlite3.OperationalError) as error:
                raise self._unusable(error) from error
            except sqlite3.Error as error:
                raise RequestError(f"voices_folder: {self._folder}: {error}") from error

    def _unusable(self, error: Exception) -> Unavailable:
        return Unavailable(f"voices_folder: {self._folder}: {error}")

    def _disconnect(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._was_opened and not self._folder.is_dir():
            # A recreated folder would be empty, and every voice unknown.
            raise FileNotFoundError("the folder is gone")
        (self._folder / ARRAYS).mkdir(parents=True, exist_ok=True)
        # The lock admits one thread at a time.
        connection = sqlite3.connect(
            self._folder / DATABASE, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )  # fmt: skip
        try:
            connection.execute(TABLE)
            self._sweep({file for (file,) in connection.execute("SELECT file FROM voices")})
        except BaseException:
            connection.close()
            raise
        self._was_opened = True
        return connection

    def _sweep(self, named: set[str]) -> None:
        for path in (self._folder / ARRAYS).iterdir():
            # Another process may rename or delete it meanwhile.
            with suppress(FileNotFoundError):
                if path.name not in named and time.time() - path.stat().st_mtime > ORPHAN_SECONDS:
                    path.unlink()

    def _write(self, content: bytes) -> str:
        """Write a file atomically; returns its name."""
        name = f"{uuid.uuid4().hex}.npz"
        path = self._folder / ARRAYS / name
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise self._unusable(error) from error
        return name

    def _remove(self, file: str) -> None:
        (self._folder / ARRAYS / file).unlink(missing_ok=True)

    def _find(self, database: sqlite3.Connection, name: str) -> VoiceRecord:
        row = database.execute(f"SELECT {COLUMNS} FROM voices WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise unknown(name)
        return VoiceRecord(*row)

    def _check_free(self, database: sqlite3.Connection, name: str) -> None:
        if database.execute("SELECT 1 FROM voices WHERE name = ?", (name,)).fetchone():
            raise taken(name)

    def _check_room(self, database: sqlite3.Connection, num_bytes: int) -> None:
        count, used = database.execute("SELECT count(*), coalesce(sum(num_bytes), 0) FROM voices").fetchone()
        self._quota.check(count, used, num_bytes)
