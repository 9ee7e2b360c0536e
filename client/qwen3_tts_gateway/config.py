"""Settings of the gateway: defaults, a TOML file, then command line flags."""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, ValidationError

from qwen3_tts_client.checkpoints import LANGUAGES
from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.protocol import MODEL_NAME

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
# OpenAI's voices. Speakers with a Chinese dialect, and those of Japanese and Korean, are not among them.
VOICE_ALIASES = {
    "alloy": "serena",
    "ash": "ryan",
    "ballad": "aiden",
    "cedar": "uncle_fu",
    "coral": "vivian",
    "echo": "aiden",
    "fable": "ryan",
    "marin": "serena",
    "nova": "vivian",
    "onyx": "uncle_fu",
    "sage": "serena",
    "shimmer": "vivian",
    "verse": "ryan",
}
MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    servers: tuple[str, ...] = Field(default=("localhost:8001",), min_length=1)
    connections: Count = 8  # to each server
    models: tuple[str, ...] = Field(default=(MODEL_NAME,), min_length=1)  # of Triton; the first is the default
    model_aliases: tuple[str, ...] = MODEL_ALIASES  # further names of the first model
    languages: tuple[str, ...] = tuple(LANGUAGES)
    voice_aliases: dict[str, str] = VOICE_ALIASES
    voice_objects_for: tuple[str, ...] = ("aiohttp",)  # in User-Agent; Open WebUI's names its HTTP library alone
    default_voice: str = "vivian"

    auth: bool = True
    keys_file: Path | None = None
    streams_per_key: Count = 256
    public_lists: bool = False  # models and voices are listed without a key
    characters_per_minute: Count | None = None  # of each key
    limits_storage: str = "async+memory://"
    cors_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()  # whose X-Forwarded-Host counts
    cloning: Literal["on", "consent", "off"] = "on"

    max_input_characters: Count = 4096
    max_batch_items: Count = 32
    max_body_bytes: Count = 16 << 20
    request_seconds: Seconds = 300.0
    chunk_seconds: Seconds = 60.0
    idle_seconds: Seconds = 60.0  # between the messages of a WebSocket client
    # More contend for Python's lock with the event loop.
    encoder_threads: Count = min(4, max(2, os.cpu_count() or 1))
    log_text: bool = False


def load(path: Path | None, flags: dict[str, Any]) -> Settings:
    """`flags` that are None keep the file's value. Raises ClientError with one line that names the setting."""
    values = _read(path) if path else {}
    values |= {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ClientError(f"setting {name}: {first['msg'].lower()}: {first['input']!r}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClientError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
