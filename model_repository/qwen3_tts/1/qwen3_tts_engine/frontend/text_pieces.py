"""Text that comes in pieces: which of it is final for the tokenizer, and where a long text is cut into parts.

Both are decided from left to right, from the text alone: how it was cut into pieces changes nothing.
"""

import unicodedata
from collections.abc import Iterator
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
        self._tail: list[str] = []  # characters that are not final
        self._final = 0  # how many of them are, by now
        self._recent = ""
        self._count = 0  # final ids of this part
        self._size = PartSize()
        self._total = 0
        self._num_chars = 0

    def add(self, text: str) -> list[Piece]:
        """What becomes final with some more text.

        Raises InvalidRequest for control tokens and for a text that is too long by now; it cannot be used after that.
        """
        self._check(text)
        pieces = [piece for char in text for piece in self._read(char)]
        return [*pieces, self._take(self._final, ends=False)] if self._final else pieces

    def end(self) -> list[Piece]:
        """The rest. Raises InvalidRequest for a text that was all white space."""
        piece = self._take(len(self._tail), ends=True)
        if not self._total:
            raise InvalidRequest("text", "", "must hold something besides white space")
        return [piece]

    def _read(self, char: str) -> Iterator[Piece]:
        rank = self._ends.before(char)
        if rank and self._is_long(rank):
            yield self._take(len(self._tail), ends=True)
        elif self._tail and is_final(self._tail[-1], char):
            self._final = len(self._tail)
            if self._final >= LONG_TAIL:
                yield self._take(self._final, ends=False)
        self._tail.append(char)
        self._size.add(char)

    def _check(self, text: str) -> None:
        self._num_chars += len(text)
        limit = 16 * self._tokenizer.max_tokens
        if self._num_chars > limit:
            raise InvalidRequest("text", text, f"{self._num_chars} characters, at most {limit} are allowed")
        # A control token may come in pieces too.
        self._recent = self._recent[-CONTROL_CHARS:] + text
        self._tokenizer.check("text", self._recent)

    def _is_long(self, rank: int) -> bool:
        needed = rank * self._part_tokens
        if not needed or self._size.most < needed:
            return False
        self._size.most = self._count + len(self._encode(len(self._tail), ends=True))
        return self._size.most >= needed

    def _take(self, end: int, *, ends: bool) -> Piece:
        ids = self._encode(end, ends)
        del self._tail[:end]
        self._final = 0
        self._count = 0 if ends else self._count + len(ids)
        if ends:
            self._size = PartSize()
        self._total += len(ids)
        limit = self._tokenizer.max_tokens
        if self._total > limit:
            raise InvalidRequest("text", "".join(self._tail), f"{self._total} tokens, at most {limit} are allowed")
        return Piece(ids, ends)

    def _encode(self, end: int, ends: bool) -> list[int]:
        text = "".join(self._tail[:end])
        text = text.rstrip() if ends else text
        return self._tokenizer.encode(text if self._count else text.lstrip())


class PartSize:
    """How many tokens a part has at most: as many as when it was last tokenized, and one for each byte since.

    White space counts once something follows it, so that a run of it is tokenized once.
    """

    def __init__(self) -> None:
        self.most = 0
        self._blanks = 0

    def add(self, char: str) -> None:
        size = len(unicodedata.normalize("NFD", char).encode())
        if char.isspace():
            self._blanks += size
        else:
            self.most += self._blanks + size
            self._blanks = 0


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
