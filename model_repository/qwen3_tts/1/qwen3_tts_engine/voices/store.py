"""Registered voices: metadata in SQLite, the arrays of each voice in a file of its own."""

import os
import sqlite3
import threading
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import torch

from qwen3_tts_engine.request import InvalidRequest, RequestError, Unavailable
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices.record import Origin, VoiceRecord

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


COLUMNS = ", ".join(field.name for field in fields(VoiceRecord))


class VoiceStore:
    """Safe for several threads and for several processes that share the folder, which is created on demand.

    Every method raises Unavailable while the folder is unusable (locked by another process, full, gone), and
    RequestError when its content is invalid.
    """

    def __init__(self, folder: Path, max_voices: int, max_bytes: int) -> None:
        self._folder, self._max_voices, self._max_bytes = folder, max_voices, max_bytes
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._was_opened = False

    def add(self, name: str, voice: Voice, reference_seconds: float, origin: Origin) -> VoiceRecord:
        """Raises InvalidRequest when the name is taken, Unavailable when the store is full."""
        self.check_free(name)
        file, num_bytes = self._write(voice)
        values = (*asdict(origin).values(), voice.text, reference_seconds, time.time(), file, num_bytes)
        try:
            with self._database(WRITE) as database:
                self._check_room(database, num_bytes)
                marks = ", ".join("?" * (1 + len(values)))
                columns = COLUMNS.removeprefix("id, ")
                database.execute(f"INSERT INTO voices ({columns}) VALUES ({marks})", (name, *values))
                return self._find(database, name)
        except sqlite3.IntegrityError:
            self._remove(file)
            raise _taken(name) from None
        except BaseException:
            self._remove(file)
            raise

    def check_free(self, name: str) -> None:
        """Raises InvalidRequest when the name is taken."""
        with self._database() as database:
            self._check_free(database, name)

    def get(self, name: str) -> VoiceRecord:
        """Raises InvalidRequest for a name that is not registered."""
        with self._database() as database:
            return self._find(database, name)

    def list(self) -> list[VoiceRecord]:
        """All voices, by name."""
        with self._database() as database:
            return [VoiceRecord(*row) for row in database.execute(f"SELECT {COLUMNS} FROM voices ORDER BY name")]

    def delete(self, name: str) -> VoiceRecord:
        """Raises InvalidRequest for a name that is not registered. Streams that use the voice continue."""
        with self._database(WRITE) as database:
            record = self._find(database, name)
            database.execute("DELETE FROM voices WHERE id = ?", (record.id,))
        self._remove(record.file)
        return record

    def load(self, record: VoiceRecord) -> Voice:
        """The voice, with its state on the CPU."""
        try:
            with np.load(self._folder / ARRAYS / record.file, allow_pickle=False) as arrays:
                if record.ref_text is None:
                    return Voice(arrays["x_vector"])
                state = torch.from_numpy(arrays["state"])
                return Voice(arrays["x_vector"], arrays["codes"], record.ref_text, state)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            is_damaged = self._folder.is_dir() or not isinstance(error, OSError)
            kind = RequestError if is_damaged else Unavailable
            raise kind(f"voice: {record.name!r}: its file cannot be read: {error}") from error

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

    def _write(self, voice: Voice) -> tuple[str, int]:
        """Write a file atomically; returns its name and size."""
        name = f"{uuid.uuid4().hex}.npz"
        path = self._folder / ARRAYS / name
        arrays = {"x_vector": voice.x_vector}
        if voice.codes is not None:
            arrays |= {"codes": voice.codes, "state": voice.state.cpu().numpy()}
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise self._unusable(error) from error
        return name, path.stat().st_size

    def _remove(self, file: str) -> None:
        (self._folder / ARRAYS / file).unlink(missing_ok=True)

    def _find(self, database: sqlite3.Connection, name: str) -> VoiceRecord:
        row = database.execute(f"SELECT {COLUMNS} FROM voices WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise InvalidRequest("voice", name, "no voice is registered under this name")
        return VoiceRecord(*row)

    def _check_free(self, database: sqlite3.Connection, name: str) -> None:
        if database.execute("SELECT 1 FROM voices WHERE name = ?", (name,)).fetchone():
            raise _taken(name)

    def _check_room(self, database: sqlite3.Connection, num_bytes: int) -> None:
        count, used = database.execute("SELECT count(*), coalesce(sum(num_bytes), 0) FROM voices").fetchone()
        if count >= self._max_voices:
            raise Unavailable(f"{count} voices are registered, max_voices allows no more: delete one")
        if used + num_bytes > self._max_bytes:
            raise Unavailable(f"the voices take {used >> 20} MiB, voices_mib allows no more: delete one")


def _taken(name: str) -> InvalidRequest:
    return InvalidRequest("voice", name, "already registered: delete it first, or choose another name")
