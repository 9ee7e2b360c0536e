"""Copies the registered voices of a folder into a PostgreSQL database (docs/voices.md).

python -m scripts.server migrate-voices --from ~/.local/share/qwen3_tts/voices --to postgresql://user@host/database

Voices that are there already, from the same folder, are left alone, so a run that failed can be repeated. Nothing is
copied if a name in the folder belongs to another voice in the database.
"""

import hashlib
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwen3_tts_engine.config import ConfigError
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.voices.arrays import unpack
from qwen3_tts_engine.voices.record import VoiceRecord
from qwen3_tts_engine.voices.sqlite_store import DATABASE, SqliteStore

if TYPE_CHECKING:
    from qwen3_tts_engine.voices.postgres_store import PostgresStore

MAX_SHOWN = 5


class MigrationError(Exception):
    """The voices cannot be copied; the message says why, and what to do."""


def migrate(source: SqliteStore, target: "PostgresStore") -> tuple[int, int]:
    """Returns how many voices were copied, and how many were there before.

    Raises MigrationError, and RequestError for a voice that cannot be read or written; those before it stay.
    """
    voices, there = source.list(), {record.name: record for record in target.list()}
    check_names(voices, there)
    new = [record for record in voices if record.name not in there]
    for record in new:
        content = source.read(record)
        unpack(content, record)
        target.copy(record, content)
    for record in voices:
        check_copy(record, source, target)
    return len(new), len(voices) - len(new)


def check_names(voices: list[VoiceRecord], there: dict[str, VoiceRecord]) -> None:
    """Raises MigrationError for names that belong to other voices in the database."""
    taken = [record.name for record in voices if there.get(record.name, record).file != record.file]
    if taken:
        shown = ", ".join(map(repr, taken[:MAX_SHOWN])) + (", …" if len(taken) > MAX_SHOWN else "")
        raise MigrationError(
            f"{len(taken)} names belong to other voices in the database: {shown}: delete them on one of the two sides; "
            "nothing was copied"
        )


def check_copy(record: VoiceRecord, source: SqliteStore, target: "PostgresStore") -> None:
    """Raises MigrationError unless the database has this voice, byte by byte."""
    copied = target.get(record.name)
    digest = hashlib.sha256(source.read(record)).hexdigest()
    if replace(copied, id=record.id) != record or target.digest(record.file) != digest:
        raise MigrationError(f"{record.name!r}: differs in the database: delete it there and run this again")


def main(
    folder: Annotated[Path, typer.Option("--from", help="voices_folder of the servers so far")],
    dsn: Annotated[str, typer.Option("--to", envvar="QWEN3_TTS_VOICES_DSN", help="voices_dsn of the servers to come")],
) -> None:
    """Copy the registered voices of a folder into a PostgreSQL database."""
    try:
        from qwen3_tts_engine.voices.postgres_store import PostgresStore
    except ImportError as error:
        sys.exit(f"{error}: pip install '.[postgres]'")
    try:
        if not (folder.expanduser() / DATABASE).is_file():
            raise MigrationError(f"{folder / DATABASE}: missing; name the voices_folder of a server")
        # Quotas are those of the servers; what they have registered is copied whole.
        with closing(SqliteStore(folder.expanduser(), 0, 0)) as source, closing(PostgresStore(dsn, 0, 0)) as target:
            copied, before = migrate(source, target)
    except (ConfigError, MigrationError, RequestError) as error:
        typer.secho(str(error), err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None
    typer.echo(f"{copied} voices copied, {before} were there before; all {copied + before} verified")
