"""When the words of an utterance begin and end in the audio that is sent."""

from collections.abc import Iterable
from typing import Any

from qwen3_tts_gateway.audio.formats import NATIVE_RATE

# index, word, first and last character, start and, once the word has ended, end; null is a time that is not known.
Word = dict[str, Any]
Words = tuple[Word, ...]
_DIGITS = 3


class WordTimeline:
    """Collects the words of one utterance; `speed` is that of the audio that is sent."""

    def __init__(self, speed: float | None) -> None:
        self._seconds_per_sample = 1 / (NATIVE_RATE * (speed or 1.0))
        self._words: dict[int, Word] = {}

    @property
    def words(self) -> list[Word]:
        """All words in the order of the text."""
        return [word for _, word in sorted(self._words.items())]

    def add(self, told: Iterable[dict[str, Any]]) -> Words:
        """Takes words of a response, in samples (docs/api.md, Word times). Returns all that is known of each."""
        changed: dict[int, Word] = {}
        for event in told:
            word = self._words.setdefault(event["index"], {})
            word |= event | {name: self._seconds(event[name]) for name in ("start", "end") if name in event}
            changed[event["index"]] = dict(word)
        return tuple(changed.values())

    def heard_characters(self, played_s: float) -> int | None:
        """Characters of the text up to the last word that began within `played_s`; None where that is not known."""
        characters = 0
        is_known = True
        earliest_s = 0.0  # at which the next word can begin
        for word in self.words:
            start_s = word["start"]
            if played_s <= (earliest_s if start_s is None else start_s):
                break
            is_known = start_s is not None
            if is_known:
                characters = word["last"] + 1
            earliest_s = word.get("end") or start_s or earliest_s
        return characters if is_known else None

    def _seconds(self, samples: int | None) -> float | None:
        return None if samples is None else round(samples * self._seconds_per_sample, _DIGITS)


def milliseconds(words: Iterable[Word]) -> list[dict[str, Any]]:
    """Words that have ended as vllm-omni has them."""
    return [
        {"word": word["word"], "start_ms": _ms(word["start"]), "end_ms": _ms(word["end"])}
        for word in words
        if "end" in word
    ]


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
