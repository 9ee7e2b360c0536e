"""API keys, and the share of the servers that each may use."""

import hashlib
import hmac
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from limits import RateLimitItemPerMinute
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import ConfigurationError
from limits.storage import storage_from_string
from starlette.datastructures import Headers

from qwen3_tts_client.errors import ClientError
from qwen3_tts_gateway.config import LOCAL_HOSTS, Settings
from qwen3_tts_gateway.errors import APIError

# Lines of the keys file, separated by commas or line breaks.
KEYS_VARIABLE = "QWEN3_TTS_GATEWAY_KEYS"
# Browsers cannot set headers of a WebSocket; OpenAI's realtime clients send the key as a subprotocol.
KEY_PROTOCOL = "openai-insecure-api-key."
KEY_HEADER = "x-api-key"  # Cartesia's clients send it
ANONYMOUS = "anonymous"
_LINE = re.compile(r"(?P<name>[\w.-]{1,64}) (?P<sha256>[0-9a-f]{64})(?P<limits>( (streams|characters)=[1-9]\d{0,8})*)")
_KEY_BYTES = 32


@dataclass(frozen=True)
class Key:
    """`streams` at once and `characters` a minute; None: the settings' default."""

    name: str
    sha256: str
    streams: int | None = None
    characters: int | None = None


def new_key(name: str) -> tuple[str, str]:
    """A random key and its line for the keys file."""
    key = f"sk-{secrets.token_urlsafe(_KEY_BYTES)}"
    return key, f"{name} {_hash(key)}"


def read_keys(path: Path | None) -> list[Key]:
    """Keys of the file and the environment. Raises ClientError."""
    lines = os.environ.get(KEYS_VARIABLE, "").replace(",", "\n").splitlines()
    found = [_parse(line, KEYS_VARIABLE) for line in lines if line.strip()]
    if path:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ClientError(f"keys_file {path}: {getattr(error, 'strerror', None) or error}") from None
        found += [_parse(line, str(path)) for line in lines if line.strip() and not line.startswith("#")]
    return found


def _parse(line: str, source: str) -> Key:
    match = _LINE.fullmatch(line.strip())
    if not match:
        raise ClientError(f"{source}: expected NAME SHA256 [streams=N] [characters=N], found {line.split()[0]!r} …")
    limits = (part.split("=") for part in match["limits"].split())
    return Key(match["name"], match["sha256"], **{name: int(value) for name, value in limits})


def _hash(key: str) -> str:
    # A key has 256 random bits, so a fast hash suffices.
    return hashlib.sha256(key.encode()).hexdigest()


class Access:
    """Raises ClientError for settings that leave an exposed address open."""

    def __init__(self, settings: Settings) -> None:
        keys = read_keys(settings.keys_file)
        if settings.auth and not keys and settings.host not in LOCAL_HOSTS:
            raise ClientError(f"host {settings.host} is not local: set keys_file or {KEYS_VARIABLE}, or pass --no-auth")
        self._keys = keys if settings.auth else []
        self._settings = settings
        self.running: Counter[str] = Counter()  # streams of each key
        try:
            storage = storage_from_string(settings.limits_storage)
        except (ConfigurationError, ImportError) as error:
            raise ClientError(f"setting limits_storage: {error}") from None
        if not settings.limits_storage.startswith("async+"):
            raise ClientError(f"setting limits_storage: expected async+…: {settings.limits_storage!r}")
        self._characters = SlidingWindowCounterRateLimiter(storage)

    def authenticate(self, headers: Headers) -> Key:
        """Raises APIError 401."""
        if not self._keys:
            return Key(ANONYMOUS, "")
        given = _hash(_credential(headers))
        for key in self._keys:
            if hmac.compare_digest(key.sha256, given):
                return key
        raise APIError(401, "a valid API key is required: Authorization: Bearer KEY", code="invalid_api_key")

    def authenticate_list(self, headers: Headers) -> Key:
        """The caller's key for lists of models and voices. Raises APIError 401."""
        return Key(ANONYMOUS, "") if self._settings.public_lists else self.authenticate(headers)

    async def spend_characters(self, key: Key, count: int) -> None:
        """Raises APIError 429."""
        limit = key.characters or self._settings.characters_per_minute
        if limit is None or count == 0:
            return
        if not await self._characters.hit(RateLimitItemPerMinute(limit), key.name, cost=count):
            message = f"key {key.name}: {limit} characters a minute are used up"
            raise APIError(429, message, code="rate_limit_exceeded", retry_after_s=60)

    def max_streams(self, key: Key) -> int:
        return key.streams or self._settings.streams_per_key

    @contextmanager
    def stream(self, key: Key) -> Iterator[None]:
        """Counts a stream. Raises APIError 429."""
        limit = self.max_streams(key)
        if self.running[key.name] >= limit:
            message = f"key {key.name}: {limit} streams run, its limit"
            raise APIError(429, message, code="rate_limit_exceeded", retry_after_s=1)
        self.running[key.name] += 1
        try:
            yield
        finally:
            self.running[key.name] -= 1


def _credential(headers: Headers) -> str:
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credential.strip()
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(KEY_PROTOCOL):
            return protocol.strip().removeprefix(KEY_PROTOCOL)
    return headers.get(KEY_HEADER, "").strip()
