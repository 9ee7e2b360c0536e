"""The rows of code2wav that a talker owns: their numbers; the states in them never leave the codec."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qwen3_tts_engine.codec.contract import MAX_BATCH, MODEL_NAME, NUM_ROWS, PUBLIC_ROWS, ZERO_ROW
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.voice import Voice

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LAST_OWNED = NUM_ROWS - PUBLIC_ROWS - 1
Claim = Callable[[np.ndarray], np.ndarray]
"""Claims rows int [n] with this talker's key; returns which are its own now, bool [n]."""


def owner_key(owner: str) -> int:
    """A key, int32 above 0, that is the same for an owner until the machine boots, and that nobody else can guess."""
    secret = BOOT_ID.read_text() if BOOT_ID.exists() else ""
    return int.from_bytes(hashlib.sha256(f"{secret} {owner}".encode()).digest()[:4], "big") >> 1 or 1


def claim_rows(count: int, claim: Claim) -> np.ndarray:
    """The numbers of `count` rows, which other talkers do not own. Raises RequestError when there are too few."""
    found: list[int] = []
    start = ZERO_ROW + 1
    while len(found) < count and start <= LAST_OWNED:
        rows = np.arange(start, min(start + min(MAX_BATCH, count - len(found)), LAST_OWNED + 1))
        found += rows[claim(rows)].tolist()
        start += len(rows)
    if len(found) < count:
        raise RequestError(f"{MODEL_NAME} has {len(found)} of {count} rows left: other models or callers own the rest")
    return np.array(found)


@dataclass
class _Held:
    """A voice's row, for as many calls as are under way."""

    row: int
    users: int = 0
    is_ready: threading.Event = field(default_factory=threading.Event)
    error: RequestError | None = None


class VoiceRows:
    """Rows of the states after the references of the most recent voices. Thread-safe."""

    def __init__(self, rows: Sequence[int], decode: Callable[[Voice, int], None]) -> None:
        """`decode` leaves a voice's state in a row. With more rows than voices in use at once, one is always free."""
        self._free, self._decode = list(rows), decode
        self._held: OrderedDict[Voice, _Held] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, voices: Sequence[Voice]) -> Iterator[dict[Voice, int | RequestError]]:
        """The rows of voices in context, or why there is none; they keep these until the block ends."""
        held: dict[Voice, _Held] = {}
        try:
            for voice in dict.fromkeys(voices):
                held[voice] = self._take(voice)
            yield {voice: entry.error or entry.row for voice, entry in held.items()}
        finally:
            with self._lock:
                for entry in held.values():
                    entry.users -= 1

    def forget(self, voice: Voice) -> None:
        """Decode it anew the next time: its row has lost it."""
        with self._lock:
            if entry := self._held.pop(voice, None):
                self._free.append(entry.row)

    def _take(self, voice: Voice) -> _Held:
        with self._lock:
            entry = self._held.get(voice)
            is_new = entry is None
            if entry is None:
                entry = self._held[voice] = _Held(self._free.pop() if self._free else self._evict())
            self._held.move_to_end(voice)
            entry.users += 1
        if is_new:
            self._fill(voice, entry)
        entry.is_ready.wait()
        return entry

    def _fill(self, voice: Voice, entry: _Held) -> None:
        try:
            self._decode(voice, entry.row)
        except RequestError as error:
            entry.error = error
        except Exception as error:
            entry.error = RequestError(f"decoding a voice failed: {error}")
        if entry.error:
            self.forget(voice)
        entry.is_ready.set()

    def _evict(self) -> int:
        """The row of the voice that was used least recently, of those that no call uses; called under the lock."""
        for voice, entry in self._held.items():
            if not entry.users:
                return self._held.pop(voice).row
        raise RequestError(f"all {len(self._held)} rows of voices are in use")
