"""The interface of a registry of voices, and what its two forms share: SQLite in a folder, and PostgreSQL."""

from dataclasses import dataclass, fields
from typing import Protocol

from qwen3_tts_engine.request import InvalidRequest, Unavailable
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices.record import Origin, VoiceRecord

COLUMNS = ", ".join(field.name for field in fields(VoiceRecord))
# The registry assigns the id.
NEW_COLUMNS = COLUMNS.removeprefix("id, ")


class VoiceStore(Protocol):
    """Safe for several threads, and for several servers that share it.

    Every method raises Unavailable while the registry cannot be used (locked, full, away), and RequestError when its
    content is invalid.
    """

    def add(self, name: str, voice: Voice, reference_seconds: float, origin: Origin) -> VoiceRecord:
        """Raises InvalidRequest when the name is taken, Unavailable when the registry is full."""

    def check_free(self, name: str) -> None:
        """Raises InvalidRequest when the name is taken."""

    def get(self, name: str) -> VoiceRecord:
        """Raises InvalidRequest for a name that is not registered."""

    def list(self) -> list[VoiceRecord]:
        """All voices, by name."""

    def delete(self, name: str) -> VoiceRecord:
        """Raises InvalidRequest for a name that is not registered. Streams that use the voice continue."""

    def load(self, record: VoiceRecord) -> Voice:
        """Raises RequestError for a damaged file."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Quota:
    """Limits of the whole registry."""

    max_voices: int
    max_bytes: int

    def check(self, count: int, used_bytes: int, new_bytes: int) -> None:
        """Raises Unavailable when a voice of `new_bytes` exceeds a limit."""
        if count >= self.max_voices:
            raise Unavailable(f"{count} voices are registered, max_voices allows no more: delete one")
        if used_bytes + new_bytes > self.max_bytes:
            raise Unavailable(f"the voices take {used_bytes >> 20} MiB, voices_mib allows no more: delete one")


def taken(name: str) -> InvalidRequest:
    return InvalidRequest("voice", name, "already registered: delete it first, or choose another name")


def unknown(name: str) -> InvalidRequest:
    return InvalidRequest("voice", name, "no voice is registered under this name: choose one that list_voices returns")
