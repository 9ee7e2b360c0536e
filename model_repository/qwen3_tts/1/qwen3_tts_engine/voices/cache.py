"""LRU cache of voices."""

from collections import OrderedDict
from collections.abc import Hashable

from qwen3_tts_engine.voice import Voice


class VoiceCache:
    def __init__(self, max_voices: int) -> None:
        self._max_voices = max_voices
        self._voices: OrderedDict[Hashable, Voice] = OrderedDict()

    def __len__(self) -> int:
        return len(self._voices)

    def get(self, key: Hashable) -> Voice | None:
        voice = self._voices.get(key)
        if voice is not None:
            self._voices.move_to_end(key)
        return voice

    def put(self, key: Hashable, voice: Voice) -> None:
        self._voices[key] = voice
        self._voices.move_to_end(key)
        if len(self._voices) > self._max_voices:
            self._voices.popitem(last=False)
