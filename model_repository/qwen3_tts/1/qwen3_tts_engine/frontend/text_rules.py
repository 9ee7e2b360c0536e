"""The rules of spoken_text.py: markup that is left out, a lexicon, numbers and signs as words (docs/text.md)."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from qwen3_tts_engine.config import ConfigError
from qwen3_tts_engine.frontend.languages import AUTO
from qwen3_tts_engine.frontend.spoken_text import Pattern, Replacement
from qwen3_tts_engine.request import InvalidRequest

# Emoji and what joins, selects or tints them.
EMOJI = "\u200d\u20e3\ufe0e\ufe0f\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff\U000e0020-\U000e007f"
EMOJI_KEEPS = "♀♂"  # signs that texts use by themselves


def _pattern(
    pattern: str, open_end: str, group: int | None = None, text: str = "", closed: str | None = None
) -> Pattern:
    """What is found is read as one of its groups, or as `text`."""
    replace = (lambda match: match[group]) if group else (lambda match: text)
    return Pattern(re.compile(pattern), re.compile(open_end), replace, re.compile(closed) if closed else None)


# Markup that language models write for the eye, in the order in which it is left out. Repetitions are bounded, or begin
# where a run of their characters does: any text is read in linear time.
MARKUP: Mapping[str, Pattern] = {
    "reasoning": _pattern(
        r"(?s)<think>.*?(?:</think>|\Z)",
        r"(?s)<(?:t(?:h(?:i(?:n(?:k(?:>.*)?)?)?)?)?)?\Z",
        closed=r"(?s)<think>.*?</think>",
    ),
    "a code fence": _pattern(r"(?s)```.*?(?:```|\Z)", r"(?s)(?:```.*|`{1,2})\Z", closed=r"(?s)```.*?```"),
    "a link": _pattern(
        r"!?\[([^\[\]\n]{1,500})\]\([^()\s]{0,2000}(?:\s+\"[^\"\n]{0,200}\")?\)",
        r"!?\[[^\[\]\n]{0,500}(?:\](?:\([^()\n]{0,2200})?)?\Z|!\Z",
        group=1,
    ),
    "a tag": _pattern(r"<\|[^|<>\n]{1,60}\|>|</?[A-Za-z][^<>\n]{0,200}>", r"<(?:[|/A-Za-z][^<>\n]{0,200})?\Z"),
    "Markdown at the beginning of a line": _pattern(
        r"(?m)^[ \t]*(?:(?:[-*_][ \t]*){3,}$|\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t:|-]*)?$"
        r"|(?:#{1,6}[ \t]+|>[ \t]?|[-*+][ \t]+|\|[ \t]*)+)",
        r"(?m)^[ \t#>\-*+_|:]{1,200}\Z",
    ),
    "a table": _pattern(r"(?<![ \t])[ \t]*+\|[ \t]*+(?=\n|\Z)", r"(?<![ \t])[ \t]++\Z|(?<![ \t])[ \t]*+\|[ \t]*+\Z"),
    "a table's cells": _pattern(r"(?<![ \t])[ \t]*+\|[ \t]*+", r"(?<![ \t])[ \t]++\Z", text=", "),
    "emphasis": _pattern(
        r"(?<![\\])(?:\*{2,3}(?=\S)|(?<=\S)\*{2,3}|~~(?=\S)|(?<=\S)~~|(?<![\w*])\*(?=[^\s*])|(?<=[^\s*])\*(?![\w*])"
        r"|(?<![\w_])_{1,3}(?=[^\s_])|(?<=[^\s_])_{1,3}(?![\w_]))",
        r"[*_~]{1,8}\Z",
    ),
    "code": _pattern(r"`+", r"`{1,8}\Z"),
    "an escaped sign": _pattern(r"\\(?=[!-/:-@\[-`{-~])", r"\\\Z"),
    "emoji": _pattern(rf"[ ]?(?:(?![{EMOJI_KEEPS}])[{EMOJI}])+", rf"[ ]?[{EMOJI}]{{0,16}}\Z"),
}


def find_markup(text: str) -> tuple[str, str] | None:
    """The first markup in a text, and what it is."""
    found = [(match, name) for name, rule in MARKUP.items() if (match := rule.pattern.search(text))]
    if not found:
        return None
    match, name = min(found, key=lambda item: item[0].start())
    return match[0], name


class Refusal:
    """Refuses a text with markup."""

    def settled(self, text: str, first: int) -> int:
        return min(rule.settled(text, first) for rule in MARKUP.values())

    def find(self, text: str, first: int) -> list[Replacement]:
        """Raises InvalidRequest."""
        if found := find_markup(text):
            raise InvalidRequest("text", found[0], f"{found[1]} is refused: leave it out, or set text_policy to plain")
        return []


# Entries of a lexicon, and characters of an entry's word or spelling.
MAX_ENTRIES, MAX_ENTRY_CHARACTERS = 1000, 200


class Lexicon:
    """Words that are spoken as something else. A word in lower case is any spelling of it; another one is exact.

    What is replaced is not read again, so that entries cannot form loops.
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._exact = {word: spelling for word, spelling in entries.items() if word != word.lower()}
        self._folded = {word: spelling for word, spelling in entries.items() if word == word.lower()}
        longest_first = sorted(entries, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_whole_word, longest_first)) or r"(?!)", re.IGNORECASE)
        self._words = max((word.count(" ") + 1 for word in entries), default=1)
        self._unspaced = max((len(word) for word in entries if not _is_spaced(word)), default=1)

    @classmethod
    def parse(cls, text: str, field: str = "lexicon") -> "Lexicon":
        """From a JSON object of word to spelling; raises InvalidRequest."""
        allowed = f'a JSON object such as {{"Nguyen": "win"}}, of at most {MAX_ENTRIES} entries'
        try:
            entries = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidRequest(field, text, allowed) from None
        if not isinstance(entries, dict) or len(entries) > MAX_ENTRIES:
            size = f"{len(entries)} entries" if isinstance(entries, dict) else text
            raise InvalidRequest(field, size, allowed)
        for word, spelling in entries.items():
            if (
                not isinstance(spelling, str)
                or not word.strip()
                or max(len(word), len(spelling)) > MAX_ENTRY_CHARACTERS
            ):
                raise InvalidRequest(field, f"{word}: {spelling}", f"1 to {MAX_ENTRY_CHARACTERS} characters each")
        return cls({" ".join(word.split()): spelling for word, spelling in entries.items()})

    @classmethod
    def read(cls, file: Path) -> "Lexicon":
        """Raises ConfigError."""
        try:
            return cls.parse(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, InvalidRequest) as error:
            raise ConfigError(f"lexicon_file: {file}: {error}") from None

    def settled(self, text: str, first: int) -> int:
        """A last word may go on, and be the beginning of an entry of several words."""
        start = len(text)
        for _ in range(self._words):
            start = _last_word(text, first, start)
        return max(first, min(start, len(text) - self._unspaced + 1))

    def find(self, text: str, first: int) -> list[Replacement]:
        found = []
        for match in self._pattern.finditer(text, first):
            word = " ".join(match[0].split())
            spelling = self._exact.get(word, self._folded.get(word.lower()))
            if spelling is not None:
                found.append(Replacement(*match.span(), spelling))
        return found


# Scripts without spaces between words.
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
IS_CJK = re.compile(f"[{CJK}]")


def _last_word(text: str, first: int, end: int) -> int:
    """Where the last word before `end` begins, `first` at the earliest; CJK is part of one only after a digit."""
    while end > first and text[end - 1].isspace():
        end -= 1
    while end > first and not text[end - 1].isspace():
        if IS_CJK.match(text[end - 1]) and not (end - 1 > first and text[end - 2].isdigit()):
            break
        end -= 1
    return end


def _is_spaced(word: str) -> bool:
    return not re.fullmatch(rf"[{CJK}]+", word)


def _whole_word(word: str) -> str:
    spaced = r"\s+".join(map(re.escape, word.split(" ")))
    return rf"(?<!\w){spaced}(?!\w)" if _is_spaced(word) else spaced


class Normalizer(Protocol):
    """wetext.Normalizer."""

    def normalize(self, text: str) -> str: ...


# Languages with rules for numbers, dates, amounts and units.
NORMALIZED = {"chinese": "zh", "english": "en", "japanese": "ja"}
READ_LANGUAGES = (*NORMALIZED, AUTO)
KANA, HAN = re.compile("[\u3040-\u30ff]"), re.compile("[\u3400-\u9fff]")
# Texts are read sentence by sentence, and none of more characters than these at once.
SENTENCE = re.compile(r"[^\n。！？]{1,400}?(?:[.!?](?=\s)|[。！？\n]|\Z)|[^\n。！？]{1,400}|[\n。！？]")
# Signs that the library may write out; a sentence of more numbers is a table, which would take long.
READ_OUT, NUMBER, MAX_NUMBERS = re.compile(r"[\d%&@#$€£¥℃]|[^\W\d_]\."), re.compile(r"\d+"), 40
TOKENS = re.compile(rf"\s+|[{CJK}]|\d+|[^\W\d_]+|.", re.DOTALL)


class Numbers:
    """Numbers, dates, amounts, units and addresses as words, by the rules of WeText."""

    def __init__(self, language: str) -> None:
        """`language` is one of NORMALIZED, or AUTO to choose by the script of each sentence."""
        self._language = language

    @classmethod
    def of(cls, language: str) -> "Numbers":
        """Raises InvalidRequest for a language without rules, and where the library is missing."""
        if language not in READ_LANGUAGES:
            raise InvalidRequest("normalize_text", True, f"for {', '.join(NORMALIZED)}, not for {language}")
        try:
            check_normalizer()
        except ConfigError as error:
            raise InvalidRequest("normalize_text", True, str(error)) from None
        return cls(language)

    def settled(self, text: str, first: int) -> int:
        """A number may be followed by a unit, which is the next word."""
        start = _last_word(text, first, len(text))
        before = _last_word(text, first, start) if text[start - 1 : start].isspace() else start
        return before if any(char.isdigit() for char in text[before:start]) else start

    def find(self, text: str, first: int) -> list[Replacement]:
        found = []
        for match in SENTENCE.finditer(text, first):
            code = NORMALIZED.get(self._language) or ("ja" if KANA.search(text) else _code_of_script(match[0]))
            found += [Replacement(match.start() + a, match.start() + b, new) for a, b, new in _read_out(match[0], code)]
        return found


def _code_of_script(text: str) -> str:
    return "zh" if HAN.search(text) else "en"


def _read_out(sentence: str, code: str) -> list[Replacement]:
    if not READ_OUT.search(sentence) or len(NUMBER.findall(sentence)) > MAX_NUMBERS:
        return []
    # The library strips white space.
    before = len(sentence) - len(sentence.lstrip())
    try:
        spoken = normalizer(code).normalize(sentence.strip())
    except Exception:
        # Whatever the library cannot read is spoken as it is written.
        return []
    return [Replacement(before + a, before + b, new) for a, b, new in differences(sentence.strip(), spoken.strip())]


def differences(before: str, after: str) -> Sequence[Replacement]:
    """Replacements that make one text of the other, word by word."""
    old, new = TOKENS.findall(before), TOKENS.findall(after)
    starts = [0]
    for token in old:
        starts.append(starts[-1] + len(token))
    found: list[Replacement] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        text = "".join(new[c:d])
        if a == b:  # an insertion belongs to the word before it
            a = max(0, a - 1)
            text = (old[a] if b else "") + text + ("" if b else old[0])
            b = max(b, 1)
            if found and found[-1].end > starts[a]:
                found[-1] = found[-1]._replace(text=found[-1].text + "".join(new[c:d]))
                continue
        found.append(Replacement(starts[a], starts[b], text))
    return found


def check_normalizer() -> None:
    """Raises ConfigError without the library."""
    if find_spec("wetext") is None:
        raise ConfigError("normalize_text requires the package wetext on the server: pip install '.[normalize]'")


@cache
def normalizer(code: str) -> Normalizer:
    """Raises ImportError without the extra `normalize`."""
    import wetext

    made: Normalizer = wetext.Normalizer(lang=code, operator="tn")
    return made
