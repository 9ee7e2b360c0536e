"""LRU cache of voices."""

from collections import OrderedDict
from collections.abc import Hashable

from qwen3_tts_engine.voice import Voice


class VoiceCache:
    """LRU cache of at most `max_bytes`; a larger voice is not cached."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._voices: OrderedDict[Hashable, Voice] = OrderedDict()

    def __len__(self) -> int:
        return len(self._voices)

    def get(self, key: Hashable) -> Voice | None:
        voice = self._voices.get(key)
        if voice is not None:
            self._voices.move_to_end(key)
        return voice

    def put(self, key: Hashable, voice: Voice) -> None:
        self.drop(key)
        self._voices[key] = voice
        self.num_bytes += voice.num_bytes
        while self.num_bytes > self.max_bytes:
            self.drop(next(iter(self._voices)))

    def drop(self, key: Hashable) -> None:
        voice = self._voices.pop(key, None)
        self.num_bytes -= voice.num_bytes if voice else 0
