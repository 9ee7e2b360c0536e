"""Incremental tokenization: which ids of streamed text are final, and where a long text is split into parts.

Both are decided left to right from the text alone; how the text was split into requests has no effect.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from qwen3_tts_engine.request import InvalidRequest

# White space in every Unicode version, line breaks excluded.
BLANKS = " \t\u00a0\u3000"
# Punctuation that ends a sentence or a clause before white space; the wide forms end one before any character.
SENTENCE_ENDS, WIDE_SENTENCE_ENDS = ".!?…", "。！？｡"
CLAUSE_ENDS, WIDE_CLAUSE_ENDS = ",;:—", "，、；："
CLOSERS = "\"'”’»)]}」』）】》〉"
# A part may end with a sentence, a clause or a word once it has this many times its token limit.
SENTENCE, CLAUSE, WORD = 1, 2, 3
PUNCTUATION = {char: (SENTENCE, char in WIDE_SENTENCE_ENDS) for char in SENTENCE_ENDS + WIDE_SENTENCE_ENDS}
PUNCTUATION |= {char: (CLAUSE, char in WIDE_CLAUSE_ENDS) for char in CLAUSE_ENDS + WIDE_CLAUSE_ENDS}
# Characters that are read out: letters, digits, signs of currencies and mathematics, and some others.
READ_CATEGORIES = {"Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "Sc", "Sm"}
READ_SIGNS = "%&@#°§©"
UNSPOKEN = "nothing of it can be spoken: it must contain a letter, a digit or a sign that is read"
# Maximum characters that wait although they could be tokenized; bounds the work per sentence end.
LONG_TAIL = 256
# A token is at least one character in practice; bounds the work on huge input.
MAX_TOKEN_CHARACTERS = 16
# Longer than any control token.
CONTROL_CHARS = 64


class Tokenizer(Protocol):
    """The methods of tokenizer.TextTokenizer that PiecewiseText uses."""

    max_tokens: int

    def encode(self, text: str) -> list[int]: ...

    def check(self, field: str, text: str) -> None: ...


@dataclass(frozen=True)
class Piece:
    """Ids that later text cannot change; `ends` marks the last ones of a part.

    They are those of `text`, which begins at character `start` of what is spoken. `pause` are samples of silence before
    the part, with its first ids.
    """

    ids: list[int]
    ends: bool
    text: str
    start: int
    pause: int = 0


class PiecewiseText:
    """Tokenizes text incrementally. Each part is tokenized alone, without surrounding white space."""

    def __init__(self, tokenizer: Tokenizer, part_tokens: int) -> None:
        """`part_tokens` is the token limit after which a part ends; 0 never splits."""
        self._tokenizer = tokenizer
        self._part_tokens = part_tokens
        self._ends = Ends()
        self._tail: list[str] = []  # characters not tokenized yet
        self._final = 0  # how many of them are final
        self._recent = ""
        self._count = 0  # final ids of this part
        self._size = PartSize()
        self._total = 0
        self._num_chars = 0
        self._num_taken = 0
        self._is_spoken = False
        self.pause_samples = 0
        """Silence after the pieces that were returned."""

    def add(self, text: str) -> list[Piece]:
        """Append text; returns the pieces that became final.

        Raises InvalidRequest for control tokens and for too long a text; the object is unusable afterwards.
        """
        self._check(text)
        pieces = [piece for char in text for piece in self._read(char)]
        return [*pieces, self._take(self._final, ends=False)] if self._final else pieces

    def pause(self, samples: int) -> list[Piece]:
        """End the part, and add silence after it; returns the rest of the part."""
        piece = self._take(len(self._tail), ends=True)
        self.pause_samples += samples
        return [piece]

    def end(self) -> list[Piece]:
        """End the text; returns the rest. Raises InvalidRequest when nothing of it can be spoken."""
        piece = self._take(len(self._tail), ends=True)
        if not self._total:
            raise InvalidRequest("text", "", "must contain more than white space")
        if not self._is_spoken:
            raise InvalidRequest("text", self._recent, UNSPOKEN)
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
        limit = MAX_TOKEN_CHARACTERS * self._tokenizer.max_tokens
        if self._num_chars > limit:
            raise InvalidRequest("text", text, f"{self._num_chars} characters, at most {limit} are allowed")
        self._is_spoken = self._is_spoken or can_be_spoken(text)
        # A control token may span pieces.
        self._recent = self._recent[-CONTROL_CHARS:] + text
        self._tokenizer.check("text", self._recent)

    def _is_long(self, rank: int) -> bool:
        needed = rank * self._part_tokens
        if not needed or self._size.max_tokens < needed:
            return False
        self._size.max_tokens = self._count + len(self._tokenizer.encode(self._stripped(len(self._tail), ends=True)[0]))
        return self._size.max_tokens >= needed

    def _take(self, end: int, *, ends: bool) -> Piece:
        text, skipped = self._stripped(end, ends)
        ids, start = self._tokenizer.encode(text), self._num_taken + skipped
        del self._tail[:end]
        self._num_taken += end
        self._final = 0
        pause = 0
        if ids and not self._count:
            pause, self.pause_samples = self.pause_samples, 0
        self._count = 0 if ends else self._count + len(ids)
        if ends:
            self._size = PartSize()
        self._total += len(ids)
        limit = self._tokenizer.max_tokens
        if self._total > limit:
            raise InvalidRequest("text", "".join(self._tail), f"{self._total} tokens, at most {limit} are allowed")
        return Piece(ids, ends, text, start, pause)

    def _stripped(self, end: int, ends: bool) -> tuple[str, int]:
        """The text to tokenize of the first `end` characters that wait, and how many it leaves out before it."""
        text = "".join(self._tail[:end])
        text = text.rstrip() if ends else text
        stripped = text if self._count else text.lstrip()
        return stripped, len(text) - len(stripped)


def parts_of(pieces: Iterable[Piece]) -> list[tuple[list[int], int]]:
    """The ids of each part, and the samples of silence before it."""
    parts: list[tuple[list[int], int]] = []
    is_open = False
    for piece in pieces:
        if piece.ids and not is_open:
            parts.append(([], piece.pause))
            is_open = True
        if is_open:
            parts[-1][0].extend(piece.ids)
        is_open = is_open and not piece.ends
    return parts


def can_be_spoken(text: str) -> bool:
    """Whether a text has a character that is read: of others alone a talker makes up words."""
    return any(char in READ_SIGNS or unicodedata.category(char) in READ_CATEGORIES for char in text)


class PartSize:
    """Upper bound of a part's tokens: the count at its last tokenization plus one per byte since.

    White space counts only once other text follows, so that a run of it is tokenized once.
    """

    def __init__(self) -> None:
        self.max_tokens = 0
        self._blanks = 0

    def add(self, char: str) -> None:
        size = len(unicodedata.normalize("NFD", char).encode())
        if char.isspace():
            self._blanks += size
        else:
            self.max_tokens += self._blanks + size
            self._blanks = 0


class Ends:
    """Detects the ends of sentences, clauses and words, character by character."""

    def __init__(self) -> None:
        self._rank = 0  # of the preceding punctuation
        self._is_wide = False

    def before(self, char: str) -> int:
        """SENTENCE, CLAUSE or WORD when one ends right before `char`, the next character; else 0."""
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
    """Whether no token spans these two neighbours, so that both sides can be tokenized separately.

    The pre-tokenizer of tokenizer.py joins a blank only to preceding white space, and never joins punctuation to a
    preceding letter or digit; NFC composes neither with the preceding character. NFC decomposes some letters into a
    letter and a mark, to which the pre-tokenizer does join punctuation.
    """
    if after in BLANKS:
        return not before.isspace()
    last = unicodedata.normalize("NFC", before)[-1]
    return unicodedata.category(last)[0] in "LN" and unicodedata.category(after)[0] in "PS"
