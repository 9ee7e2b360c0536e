"""The sentences to speak, chosen from dictionaries, a Bible and templates; `texts.py` reads the result.

The sources are files of the Debian packages wordnet-base, bible-kjv-text and wamerican-small (data/LICENSES.md).
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.demo_voice.templates import Filler

SHORTEST, LONGEST = 2, 230
ALLOWED = re.compile(r"^[A-Za-z0-9 ,.'?!;:$%\-]+$")
# Acronyms, mixed case, digits inside words, list marks, and letters that are no word.
UNREADABLE = re.compile(r"[A-Z]{3,}|[a-z][A-Z]|[A-Za-z]\d|\d[a-z]{3}|\d{6}|\.[^\s\d]|[bcdfghjklmnpqrstvwxz]{6}| - |--")
UNSUITABLE = re.compile(
    r"sex|fuck|shit|damn|breast|naked|nigg|jew|whore|rape|bitch|intercourse|genital|vagina|penis|offensive|slur|"
    r"excrement|prostitut|nazi|slave|harlot|fornicat|piss|dung|bastard|concubine|circumcis",
    re.IGNORECASE,
)
CLAUSE = re.compile(r"[;:,] ")
MAX_CLAUSE = 130
# How many sentences of each source, in a corpus of about 100 hours.
SHARES = {"bible": 9_000, "examples": 42_000, "glosses": 16_000, "templates": 26_000, "words": 8_000}
JOINED = 0.17


@dataclass(frozen=True)
class Sources:
    """A folder into which the packages are unpacked, and the Bible's verses, one per line after its reference."""

    packages: Path
    verses: Path

    def bible(self) -> Iterator[str]:
        for line in self.verses.read_text().splitlines():
            yield from clauses(clean(line.partition(" ")[2]))

    def glosses(self) -> Iterator[str]:
        for gloss in self._wordnet():
            text = clean(re.sub(r'[;,]? ?"[^"]*"', "", gloss).split(";")[0])
            if not re.search(r"\d", text):
                yield text

    def examples(self) -> Iterator[str]:
        for gloss in self._wordnet():
            yield from map(clean, re.findall(r'"([^"]+)"', gloss))

    def ranked_words(self) -> list[str]:
        """Words by how often WordNet's tagged texts contain them."""
        counts: Counter[str] = Counter()
        for line in (self.packages / "usr/share/wordnet/cntlist.rev").read_text().splitlines():
            key, _, count = line.split()
            word = key.partition("%")[0]
            if word.isalpha() and len(word) > 1:
                counts[word] += int(count)
        return [word for word, _ in counts.most_common(12_000)]

    def dictionary(self) -> list[str]:
        words = (self.packages / "usr/share/dict/american-english-small").read_text().split()
        return [word for word in words if re.fullmatch(r"[a-z]{2,}", word) and not UNSUITABLE.search(word)]

    def _wordnet(self) -> Iterator[str]:
        for kind in ("noun", "verb", "adj", "adv"):
            for line in (self.packages / f"usr/share/wordnet/data.{kind}").read_text().splitlines():
                yield line.partition(" | ")[2]


def choose(sources: Sources, fillers: Path, templates: Path, seed: int = 7) -> list[str]:
    """All sentences in random order, without repetitions."""
    rng = random.Random(seed)
    words, dictionary = sources.ranked_words(), sources.dictionary()
    filler = Filler(json.loads(fillers.read_text()), [word for word in words if not UNSUITABLE.search(word)], rng)
    patterns = templates.read_text().splitlines()
    kinds = {
        "bible": list(sources.bible()),
        "examples": list(sources.examples()),
        "glosses": list(sources.glosses()),
        "templates": [filler.fill(rng.choice(patterns)) for _ in range(2 * SHARES["templates"])],
        "words": [_word_list(words, dictionary, rng) for _ in range(SHARES["words"])],
    }
    chosen = [text for kind, texts in kinds.items() for text in _sample(texts, SHARES[kind], rng)]
    chosen += _every_word(dictionary, rng)
    chosen = list(dict.fromkeys(chosen))
    rng.shuffle(chosen)
    return _join_some(chosen, rng)


def clean(text: str) -> str:
    text = text.replace("\u2019", "'").replace("--", ", ").replace('"', "").replace("`", "'").replace("''", "")
    text = re.sub(r"[()\[\]{}*_]", "", text)
    text = re.sub(r"\s+", " ", text).strip(" ,;:-'")
    text = re.sub(r" ([,.;:?!])", r"\1", text)
    return re.sub(r"([,.;:?!])[,.;:?!]+", r"\1", text)


def is_speakable(text: str) -> bool:
    fits = SHORTEST <= len(text) <= LONGEST and ALLOWED.match(text) is not None
    return fits and not UNREADABLE.search(text) and not UNSUITABLE.search(text)


def clauses(text: str) -> Iterator[str]:
    """A long verse in pieces that end at its punctuation."""
    while len(text) > MAX_CLAUSE and (ends := [m.end() for m in CLAUSE.finditer(text, 40, MAX_CLAUSE)]):
        yield clean(text[: ends[-1]])
        text = text[ends[-1] :]
    yield text


def finish(text: str, rng: random.Random) -> str:
    """A capital first, and punctuation last."""
    text = text[0].upper() + text[1:]
    if text[-1] in ".?!":
        return text
    return text.rstrip(",;:-") + rng.choice("........!?" if len(text) < 30 else ".")


def _sample(texts: list[str], count: int, rng: random.Random) -> list[str]:
    usable = list(dict.fromkeys(text for text in texts if is_speakable(text)))
    rng.shuffle(usable)
    return [finish(text, rng) for text in usable[:count]]


def _word_list(frequent: list[str], rare: list[str], rng: random.Random) -> str:
    def word() -> str:
        return rng.choice(frequent[: rng.choice((500, 2000, 12_000))]) if rng.random() < 0.7 else rng.choice(rare)

    return (", " if rng.random() < 0.15 else " ").join(word() for _ in range(rng.randint(1, 9)))


def _every_word(words: list[str], rng: random.Random) -> list[str]:
    order = rng.sample(words, len(words))
    return [finish(" ".join(order[i : i + 7]), rng) for i in range(0, len(order), 7)]


def _join_some(texts: list[str], rng: random.Random) -> list[str]:
    """Some lines hold two sentences."""
    remaining, joined = texts[:], []
    while remaining:
        text = remaining.pop()
        if remaining and rng.random() < JOINED and len(text) + len(remaining[-1]) < LONGEST:
            text = f"{text} {remaining.pop()}"
        joined.append(text)
    return joined
