"""Divides texts at the ends of sentences."""

import re
from typing import NamedTuple

# Ends of sentences, clauses and words, the preferred ones first.
_ENDS = (
    re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？]+[」』”’）]*|\n+"),
    re.compile(r"[,;:]\s+|[、，；：]|\s[–—-]\s"),
    re.compile(r"\s+"),
)


class TextPart(NamedTuple):
    start: int  # character of the whole text
    text: str


def split(part: TextPart, size: int) -> list[TextPart]:
    """Parts of at most `size` characters that end with a sentence, or else with a clause or a word."""
    start, text = part
    parts: list[TextPart] = []
    while len(text) > size:
        end = _end(text, size)
        parts.append(TextPart(start, text[:end]))
        start, text = start + end, text[end:]
    return [part for part in (*parts, TextPart(start, text)) if part.text.strip()]


def _end(text: str, size: int) -> int:
    for ends in _ENDS:
        found = [match.end() for match in ends.finditer(text, 0, size)]
        if found and found[-1] > size // 2:
            return found[-1]
    return size
