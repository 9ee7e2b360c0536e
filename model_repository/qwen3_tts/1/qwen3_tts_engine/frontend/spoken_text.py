"""What is spoken of a caller's text, and where in that text it comes from (docs/text.md).

Text may arrive in pieces. A rule waits for what could change its result.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from qwen3_tts_engine.core.words import Written
from qwen3_tts_engine.request import InvalidRequest


class Origin(NamedTuple):
    """Characters of the caller's text, from `first` up to `end`."""

    first: int
    end: int


class Replacement(NamedTuple):
    """Characters `first` up to `end` of a text are read as `text`."""

    first: int
    end: int
    text: str


@dataclass(frozen=True)
class Spoken:
    """Text with the origin of each of its characters."""

    text: str = ""
    origins: tuple[Origin, ...] = ()

    @classmethod
    def verbatim(cls, text: str, first: int) -> "Spoken":
        """The caller's text from character `first` on."""
        return cls(text, tuple(Origin(first + i, first + i + 1) for i in range(len(text))))

    def __add__(self, other: "Spoken") -> "Spoken":
        return Spoken(self.text + other.text, self.origins + other.origins)

    def __getitem__(self, part: slice) -> "Spoken":
        return Spoken(self.text[part], self.origins[part])

    def replaced(self, replacements: Iterable[Replacement]) -> "Spoken":
        """`replacements` are in order and apart, of at least one character each."""
        texts: list[str] = []
        origins: list[Origin] = []
        last = 0
        for first, end, text in replacements:
            texts += [self.text[last:first], text]
            origins += self.origins[last:first]
            origins += [Origin(self.origins[first].first, self.origins[end - 1].end)] * len(text)
            last = end
        return Spoken("".join([*texts, self.text[last:]]), (*origins, *self.origins[last:]))


class Rule(Protocol):
    """Before character `first` of a text is context."""

    def settled(self, text: str, first: int) -> int:
        """Up to which character a text that goes on is read alike whatever follows."""
        ...

    def find(self, text: str, first: int) -> Sequence[Replacement]:
        """Replacements from character `first` on, in order and apart."""
        ...


@dataclass(frozen=True)
class Pattern:
    """A rule by regular expressions: what is found is replaced; what `open_end` finds at a text's end may go on.

    `closed`, if given, finds what is complete, in which `open_end` does not search.
    """

    pattern: re.Pattern[str]
    open_end: re.Pattern[str]
    replace: Callable[[re.Match[str]], str] = lambda match: ""
    closed: re.Pattern[str] | None = None

    def settled(self, text: str, first: int) -> int:
        for match in self.closed.finditer(text, first) if self.closed else ():
            first = match.end()
        found = self.open_end.search(text, first)
        return found.start() if found else len(text)

    def find(self, text: str, first: int) -> list[Replacement]:
        return [Replacement(*match.span(), self.replace(match)) for match in self.pattern.finditer(text, first)]


class _Stage:
    """Applies a rule to text that arrives in pieces."""

    # Characters before a piece that a rule sees.
    CONTEXT = 80

    def __init__(self, rule: Rule) -> None:
        self._rule, self._context, self._waiting = rule, "", Spoken()

    def read(self, more: Spoken, ends: bool) -> Spoken:
        waiting, first = self._waiting + more, len(self._context)
        text = self._context + waiting.text
        end = len(text) if ends else self._rule.settled(text, first)
        found = self._rule.find(text, first)
        # A replacement that goes beyond waits as a whole.
        end = min([end, *(replacement.first for replacement in found if replacement.first < end < replacement.end)])
        found = [replacement for replacement in found if replacement.end <= end]
        ready, self._waiting = waiting[: end - first], waiting[end - first :]
        self._context = text[:end][-self.CONTEXT :]
        return ready.replaced(Replacement(a - first, b - first, new) for a, b, new in found)


# The one element of SSML that is spoken, and the beginnings of what may become one.
BREAK = re.compile(r"""<break\s+time\s*=\s*(["'])(\d{1,6}(?:\.\d{1,6})?)(ms|s)\1\s*/>""")
OPEN_BREAK = re.compile(r"<(?:b(?:r(?:e(?:a(?:k[^<>]{0,80})?)?)?)?)?\Z")
ANY_BREAK = re.compile(r"</?break\b[^<>]{0,80}>?")
MAX_BREAK_SECONDS, MAX_BREAKS_SECONDS = 10.0, 60.0


class Passage(NamedTuple):
    """Text, and the silence after it, if it ends with a break."""

    spoken: Spoken
    pause_seconds: float | None


class SpokenText:
    """Applies rules, one after the other, to a text that arrives in pieces; a break separates what they see."""

    def __init__(self, rules: Sequence[Rule], max_characters: int) -> None:
        self._rules, self._max_characters = rules, max_characters
        self._stages = [_Stage(rule) for rule in rules]
        self._waiting = Spoken()
        self._written = ""
        self._origins: list[Origin] = []
        self._pauses_seconds = 0.0

    def read(self, text: str, *, ends: bool) -> list[Passage]:
        """What is spoken of the text so far and was not returned before.

        Raises InvalidRequest for too long a text, and for a break that is none or too long.
        """
        waiting = self._waiting + Spoken.verbatim(text, len(self._written))
        self._written += text
        if len(self._written) > self._max_characters:
            raise InvalidRequest("text", text, f"at most {self._max_characters} characters")
        passages = []
        while found := BREAK.search(waiting.text):
            passages.append(Passage(self._apply(waiting[: found.start()], ends=True), self._pause_seconds(found)))
            self._stages = [_Stage(rule) for rule in self._rules]
            waiting = waiting[found.end() :]
        open_break = None if ends else OPEN_BREAK.search(waiting.text)
        end = open_break.start() if open_break else len(waiting.text)
        if wrong := ANY_BREAK.search(waiting.text, 0, end):
            raise InvalidRequest("text", wrong[0], 'a break is written <break time="500ms"/>')
        self._waiting = waiting[end:]
        passages.append(Passage(self._apply(waiting[:end], ends=ends), None))
        return passages

    def written(self, start: int, length: int) -> list[Written]:
        """What the caller wrote for so many characters of what is spoken, from character `start` of all of it on."""
        origins = self._origins[start : start + length]
        return [Written(first, end, self._written[first:end]) for first, end in origins]

    def _apply(self, spoken: Spoken, *, ends: bool) -> Spoken:
        for stage in self._stages:
            spoken = stage.read(spoken, ends)
        self._origins += spoken.origins
        return spoken

    def _pause_seconds(self, found: re.Match[str]) -> float:
        seconds = float(found[2]) / (1000 if found[3] == "ms" else 1)
        self._pauses_seconds += seconds
        if seconds > MAX_BREAK_SECONDS or self._pauses_seconds > MAX_BREAKS_SECONDS:
            limit = f"at most {MAX_BREAK_SECONDS:g} s, and {MAX_BREAKS_SECONDS:g} s in a text"
            raise InvalidRequest("text", found[0], limit)
        return seconds
