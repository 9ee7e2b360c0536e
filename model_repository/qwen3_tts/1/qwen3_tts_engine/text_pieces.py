"""Text that comes in pieces: which of it is final for the tokenizer, and where a long text is cut into parts.

Both are decided from left to right, from the text alone: how it was cut into pieces changes nothing.
"""

import unicodedata
from dataclasses import dataclass
from typing import Protocol

from qwen3_tts_engine.request import InvalidRequest

# White space that every version of Unicode agrees on and that is no line break.
BLANKS = " \t\u00a0\u3000"
# What ends a sentence or a clause before white space, and what ends one before anything.
SENTENCE_ENDS, WIDE_SENTENCE_ENDS = ".!?…", "。！？｡"
CLAUSE_ENDS, WIDE_CLAUSE_ENDS = ",;:—", "，、；："
CLOSERS = "\"'”’»)]}」』）】》〉"
# A part is cut at the end of a sentence, a clause or a word once it has so many times its limit of tokens.
SENTENCE, CLAUSE, WORD = 1, 2, 3
PUNCTUATION = {char: (SENTENCE, char in WIDE_SENTENCE_ENDS) for char in SENTENCE_ENDS + WIDE_SENTENCE_ENDS}
PUNCTUATION |= {char: (CLAUSE, char in WIDE_CLAUSE_ENDS) for char in CLAUSE_ENDS + WIDE_CLAUSE_ENDS}
# Characters that wait to be tokenized together at most, where they may be cut: bounds the work on each end.
LONG_TAIL = 256
# More than the longest control token has.
CONTROL_CHARS = 64


class Tokenizer(Protocol):
    """What is wanted of text.TextTokenizer."""

    max_tokens: int

    def encode(self, text: str) -> list[int]: ...

    def check(self, field: str, text: str) -> None: ...


@dataclass(frozen=True)
class Piece:
    """Ids that no later text can change; with `ends` they are the last ones of their part of the text."""

    ids: list[int]
    ends: bool


class PiecewiseText:
    """Makes ids of a text while it comes. Parts are tokenized each alone, without the white space around them."""

    def __init__(self, tokenizer: Tokenizer, part_tokens: int) -> None:
        """`part_tokens` is the limit behind which a part ends; 0 never cuts."""
        self._tokenizer = tokenizer
        self._part_tokens = part_tokens
        self._ends = Ends()
        self._tail = ""  # what is not final, behind what is
        self._scanned = 0  # characters of it that were looked at
        self._recent = ""
        self._count = 0  # final ids of this part
        self._total = 0
        self._num_chars = 0

    def add(self, text: str) -> list[Piece]:
        """What becomes final with some more text.

        Raises InvalidRequest for control tokens and for a text that is too long by now; it cannot be used after that.
        """
        self._check(text)
        self._tail += text
        pieces = []
        final = 0
        while self._scanned < len(self._tail):
            at = self._scanned
            self._scanned += 1
            rank = self._ends.before(self._tail[at])
            if rank and self._is_long(rank, at):
                pieces.append(self._take(at, ends=True))
                final = 0
            elif at and is_final(self._tail[at - 1], self._tail[at]):
                final = at
            if final >= LONG_TAIL:
                pieces.append(self._take(final, ends=False))
                final = 0
        if final:
            pieces.append(self._take(final, ends=False))
        return pieces

    def end(self) -> list[Piece]:
        """The rest. Raises InvalidRequest for a text that was all white space."""
        piece = self._take(len(self._tail), ends=True)
        if not self._total:
            raise InvalidRequest("text", "", "must hold something besides white space")
        return [piece]

    def _check(self, text: str) -> None:
        self._num_chars += len(text)
        limit = 16 * self._tokenizer.max_tokens
        if self._num_chars > limit:
            raise InvalidRequest("text", text, f"{self._num_chars} characters, at most {limit} are allowed")
        # A control token may come in pieces too.
        self._recent = self._recent[-CONTROL_CHARS:] + text
        self._tokenizer.check("text", self._recent)

    def _is_long(self, rank: int, at: int) -> bool:
        if not self._part_tokens:
            return False
        needed = rank * self._part_tokens - self._count
        # A token is a byte or more: most ends need no tokenizing.
        num_bytes = len(unicodedata.normalize("NFC", self._tail[:at]).encode())
        return num_bytes >= needed and len(self._encode(at, ends=True)) >= needed

    def _take(self, end: int, *, ends: bool) -> Piece:
        ids = self._encode(end, ends)
        self._tail = self._tail[end:]
        self._scanned -= end
        self._count = 0 if ends else self._count + len(ids)
        self._total += len(ids)
        limit = self._tokenizer.max_tokens
        if self._total > limit:
            raise InvalidRequest("text", self._tail, f"{self._total} tokens, at most {limit} are allowed")
        return Piece(ids, ends)

    def _encode(self, end: int, ends: bool) -> list[int]:
        text = self._tail[:end]
        text = text.rstrip() if ends else text
        return self._tokenizer.encode(text if self._count else text.lstrip())


class Ends:
    """Finds the ends of sentences, clauses and words, character by character."""

    def __init__(self) -> None:
        self._rank = 0  # of the punctuation just read
        self._is_wide = False

    def before(self, char: str) -> int:
        """SENTENCE, CLAUSE or WORD when one ends right before `char`, the next one of the text; else 0."""
        if char in CLOSERS:
            return 0
        if char in PUNCTUATION:
            self._rank, self._is_wide = PUNCTUATION[char]
            return 0
        found, is_wide, self._rank = self._rank, self._is_wide, 0
        if char in "\r\n":
            return SENTENCE
        if char.isspace():
            return found or WORD
        return found if is_wide else 0


def is_final(before: str, after: str) -> bool:
    """Whether ids never span these two neighbours, so that a text cut here has the ids of both sides.

    The pre-tokenizer of text.py never joins a blank to what stands before it, unless that is white space too, nor
    punctuation to a letter or digit before it; and Unicode composes neither with what stands before. Some letters it
    takes apart into a letter and a mark, to which punctuation is joined.
    """
    if after in BLANKS:
        return not before.isspace()
    last = unicodedata.normalize("NFC", before)[-1]
    return unicodedata.category(last)[0] in "LN" and unicodedata.category(after)[0] in "PS"
