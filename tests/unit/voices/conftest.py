"""Registries of voices in both forms."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices import database, postgres_store, sqlite_store
from qwen3_tts_engine.voices.postgres_store import PostgresStore
from qwen3_tts_engine.voices.record import Origin
from qwen3_tts_engine.voices.sqlite_store import SqliteStore
from qwen3_tts_engine.voices.store import VoiceStore
from tests.postgres import PostgresServer

ORIGIN = Origin(64, "speaker", "codec")
MIB = 1 << 20
Make = Callable[[int, int], VoiceStore]


class OpenStore(Protocol):
    def __call__(self, max_voices: int = 100, max_bytes: int = 64 * MIB) -> VoiceStore:
        """Another server's store; all of one test share a registry."""


def make_voice(seed: int = 0, frames: int = 5) -> Voice:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 2048, (frames, 16), np.int32)
    return Voice(random.normal(size=64).astype(np.float32), codes, f"text {seed}")


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Other load on the machine is no outage of the database."""
    for name in ("KNOWN_SECONDS", "READ_SECONDS", "WRITE_SECONDS"):
        patch.setattr(postgres_store, name, 60.0)
    patch.setattr(database, "ANSWER_SECONDS", 60.0)
    patch.setattr(sqlite_store, "BUSY_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder, or the connection string of a database."""
    return str(tmp_path / "voices") if request.param == "sqlite" else request.getfixturevalue("dsn")


def store_at(location: str, max_voices: int, max_bytes: int) -> VoiceStore:
    if location.startswith("/"):
        return SqliteStore(Path(location), max_voices, max_bytes)
    return PostgresStore(location, max_voices, max_bytes)


@pytest.fixture
def open_store(location: str) -> Iterator[OpenStore]:
    with ExitStack() as stack:

        def make(max_voices: int = 100, max_bytes: int = 64 * MIB) -> VoiceStore:
            return stack.enter_context(closing(store_at(location, max_voices, max_bytes)))

        yield make


@pytest.fixture
def store(open_store: OpenStore) -> VoiceStore:
    return open_store()
