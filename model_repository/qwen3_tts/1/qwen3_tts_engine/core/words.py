"""When the words of an utterance begin and end: from the text token that each frame speaks (docs/word-times.md)."""

import json
import unicodedata
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.alignment import TextLayout
from qwen3_tts_engine.core.text_jumps import TextJumps

UNKNOWN = -1
# Frames over which confidence is averaged, and the least mean at which times are told: over an utterance the demo voice
# has 0.8 or more with its own heads, and at most 0.43 with others.
CONFIDENCE_FRAMES, MIN_CONFIDENCE = 16, 0.6
# Attention reaches a word after its sound begins: in the median 14 to 34 ms after it in whole texts, and 42 to 64 ms in
# streamed ones (the demo voice, docs/word-times.md), whose times are led by that.
LEAD_SAMPLES: dict[TextLayout, int] = {"full": 0, "streaming": SAMPLES_PER_FRAME // 2}
# Share of a part's tokens that is taken for all of it: the position may trail behind the last ones.
SPOKEN_SHARE = 0.9
# Punctuation that is read out. Words have a letter, a digit, a symbol or one of these.
READ_PUNCTUATION = "%&@#"
HANGUL = range(0xAC00, 0xD7A4)


class Written(NamedTuple):
    """Characters `first` up to `end` of the caller's text, `text`, for which one or more others are spoken."""

    first: int
    end: int
    text: str


class Pause(NamedTuple):
    """Silence that is sent before a frame."""

    frame: int
    samples: int


@dataclass
class Word:
    """Characters `first` to `last` of the caller's text, less those that are not spoken; `token` is that of its first
    letter, `end` the token after its last one. Streamed text may still add characters."""

    index: int
    first: int
    last: int
    text: str = ""
    token: int = UNKNOWN
    end: int = UNKNOWN


class WordEvent(NamedTuple):
    """A word begins with a frame, or has ended before it; `is_known` is false where confidence is low."""

    word: Word
    frame: int
    is_begin: bool
    is_known: bool

    def to_json(
        self, skipped_samples: int, pauses: Sequence[Pause] = (), lead_samples: int = 0, sent_samples: int = 0
    ) -> str:
        """`skipped_samples` are those at the utterance's beginning that are not sent, `sent_samples` those that were
        sent before: no time is led into them, nor into a pause."""
        # A word that ends at a pause ends before it.
        passed = [pause for pause in pauses if pause.frame < self.frame + self.is_begin]
        last = max((pause.frame for pause in passed), default=0)
        at = max(last * SAMPLES_PER_FRAME, self.frame * SAMPLES_PER_FRAME - lead_samples)
        told = max(0, at - skipped_samples) + sum(pause.samples for pause in passed)
        sample, word = max(sent_samples, told) if self.is_known else None, self.word
        if not self.is_begin:
            return json.dumps({"index": word.index, "end": sample})
        begun = {"index": word.index, "word": word.text, "first": word.first, "last": word.last, "start": sample}
        return json.dumps(begun, ensure_ascii=False)


@dataclass
class TextPart:
    """The tokens and words of a part of the text."""

    words: list[Word] = field(default_factory=list)
    num_tokens: int = 0
    reached: int = 0
    """Tokens that have been spoken, as far as is known."""
    surely_reached: int = 0
    """The same, while confidence was high."""
    next_word: int = 0


class WordTimes:
    """The words of a stream's text, and the events of its frames. Used under the engine's lock."""

    def __init__(self) -> None:
        self._parts: list[TextPart] = []
        self._is_part_open = False
        self._num_words = 0
        self._open: Word | None = None  # what the next character belongs to
        self._end = 0  # characters read
        self._token, self._part = 0, 0  # of the last frame
        self._current: Word | None = None  # begun and not ended
        self._carried: Word | None = None  # goes on in the next part
        self._events: deque[WordEvent] = deque()
        self._confidences: deque[float] = deque(maxlen=CONFIDENCE_FRAMES)
        self.jumps = TextJumps()

    def add(
        self, start: int, text: str, spans: Sequence[tuple[int, int]], *, ends: bool, written: Sequence[Written] = ()
    ) -> None:
        """Add the tokens of `text`, which begins at character `start` of what is spoken; `spans` are their characters
        in `text`. `written` is what the caller wrote for each character, by default that character. `ends` marks the
        last ones of a part."""
        if not spans and not self._is_part_open:
            return
        if not self._is_part_open:
            self._parts.append(TextPart())
            self._open = None
        self._is_part_open = not ends
        part = self._parts[-1]
        if start != self._end:
            self._open = None  # white space lies between
        tokens, last_token = token_of_characters(text, spans), UNKNOWN
        written = written or [Written(start + i, start + i + 1, char) for i, char in enumerate(text)]
        for char, token, origin in zip(text, tokens, written, strict=True):
            self._read(part, char, part.num_tokens + token, origin, is_boundary=token != last_token)
            last_token = token
        part.num_tokens += len(spans)
        self._end = start + len(text)

    def cut(self, part: int) -> int | None:
        """End a part at the word that was not finished, if too little of it was spoken; the rest becomes the next part.

        The token with which the rest begins; None if the part was spoken, if it is unknown what was, or if nothing was.
        """
        spoken = self._parts[part]
        if spoken.reached >= SPOKEN_SHARE * spoken.num_tokens:
            return None
        # Where confidence was lost, what came after it is spoken again: rather twice than never.
        reached = spoken.reached if self._is_confident else spoken.surely_reached
        word = next((word for word in spoken.words if word.end > reached), None)
        if word is None or word.token <= 0:
            return None
        token, words = word.token, spoken.words[spoken.next_word :]
        self._carried = self._current if self._current is word else None
        for one in {id(one): one for one in (word, *words)}.values():
            one.token, one.end = one.token - token, one.end - token
        rest = TextPart(words, spoken.num_tokens - token)
        self._parts[part] = TextPart(spoken.words[: spoken.next_word], token, token, token, spoken.next_word)
        self._parts.insert(part + 1, rest)
        return token

    def token_of(self, part: int) -> int:
        """The token at which a part continues."""
        return self._token if part == self._part else 0

    def observe(self, frame: int, part: int, token: int, confidence: float | None) -> None:
        """A frame of a part speaks a token. Frames come in order; the first one of a part replaces those from it on,
        which were dropped."""
        self._drop(frame)
        if confidence is not None:
            self._confidences.append(confidence)
        if part != self._part:
            if self._current and self._current is not self._carried:
                self._finish_word(self._current, frame)
            self._carried = None
            self.jumps.begin_part()
        self.jumps.observe(token, confidence)
        self._part, self._token = part, token
        spoken = self._parts[part]
        spoken.reached = min(token + 1, spoken.num_tokens)
        if self._is_confident:
            spoken.surely_reached = spoken.reached
        while spoken.next_word < len(spoken.words) and spoken.words[spoken.next_word].token <= token:
            if self._current:
                self._finish_word(self._current, frame)
            self._current = word = spoken.words[spoken.next_word]
            spoken.next_word += 1
            self._events.append(WordEvent(word, frame, True, self._is_confident))
        if self._current and token >= self._current.end:
            self._finish_word(self._current, frame)

    def take(self, end: int) -> list[WordEvent]:
        """The events of frames before `end` that were not taken."""
        taken = []
        while self._events and self._events[0].frame < end:
            taken.append(self._events.popleft())
        return taken

    def finish(self, end: int) -> list[WordEvent]:
        """The events that are left of an utterance of `end` frames."""
        self._drop(end)
        if self._current:
            self._finish_word(self._current, end)
        return self.take(end + 1)

    @property
    def spoken_share(self) -> float | None:
        """Share of the text's tokens that were spoken; None where confidence is low."""
        total = sum(part.num_tokens for part in self._parts)
        if not total or not self._is_confident:
            return None
        return sum(part.reached for part in self._parts) / total

    @property
    def _is_confident(self) -> bool:
        return sum(self._confidences) >= MIN_CONFIDENCE * len(self._confidences)

    def _finish_word(self, word: Word, frame: int) -> None:
        self._current = None
        self._events.append(WordEvent(word, frame, False, self._is_confident))

    def _drop(self, frame: int) -> None:
        """Forget the events of frames from this one on."""
        while self._events and self._events[-1].frame >= frame:
            event = self._events.pop()
            self._current = None if event.is_begin else event.word

    def _read(self, part: TextPart, char: str, token: int, written: Written, *, is_boundary: bool) -> None:
        """A character of a token; `is_boundary` is its first one."""
        word = self._open
        if word is None or word.last != written.end - 1:  # not one more character of the same replacement
            if char.isspace():
                self._open = None
                return
            if word is None or (is_boundary and is_spoken(char) and _splits(word, char)):
                word = self._open = Word(UNKNOWN, written.first, written.end - 1)
            word.last, word.text = written.end - 1, word.text + written.text
        if not is_spoken(char):
            return
        word.end = token + 1
        if word.token == UNKNOWN:
            word.token, word.index = token, self._num_words
            self._num_words += 1
            part.words.append(word)


def token_of_characters(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The first token that ends after each character."""
    tokens, token = [], 0
    for position in range(len(text)):
        while token < len(spans) - 1 and spans[token][1] <= position:
            token += 1
        tokens.append(token)
    return tokens


def is_spoken(char: str) -> bool:
    return unicodedata.category(char)[0] in "LNS" or char in READ_PUNCTUATION


def is_wide(char: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    return unicodedata.east_asian_width(char) in "WF" and ord(char) not in HANGUL


def _splits(word: Word, char: str) -> bool:
    """Whether a token that begins with `char` begins a word."""
    return word.token != UNKNOWN and (is_wide(char) or is_wide(word.text[-1]))
