"""Sentences that the demo voice did not learn, and their words as an aligner needs them."""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from num2words import num2words

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.frontend.tokenizer import TextTokenizer
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.demo_voice.sizes import PART_TEXT_TOKENS
from scripts.demo_voice.templates import Filler
from scripts.demo_voice.texts import DATA, held_texts, training_texts

MIN_WORDS = 4
MAX_TOKENS = 16_384
# Characters of a text in two parts, which take about 10 s.
MAX_TWO_PARTS = 160
SPOKEN_WORD = re.compile(r"\d+|[a-z]+(?:'[a-z]+)*")
# Templates whose only digits are numbers up to 999 or single ones, which are read out in one way.
NUMBERED = re.compile(r"(?!.*(\{noun\}|\{time\}|\{year\}|\}\.\{|\$|%)).*\{(number|digits)\}")
IsKnown = Callable[[str], bool]
TEMPLATES, FILLERS = DATA / "templates.txt", DATA / "fillers.json"


def spoken_words(text: str) -> list[list[str]]:
    """What is said for each word of `text`, by white space."""
    return [[part for found in SPOKEN_WORD.findall(word.lower()) for part in _read_out(found)] for word in text.split()]


def plain(is_known: IsKnown) -> Iterator[str]:
    """Sentences without digits; `is_known` says whether the aligner's dictionary has a word."""
    return _fit((text for text in held_texts() if not re.search(r"\d", text)), is_known)


def with_digits(is_known: IsKnown) -> Iterator[str]:
    templates = [line for line in TEMPLATES.read_text().splitlines() if NUMBERED.match(line)]
    filler = Filler(json.loads(FILLERS.read_text()), [], rng := random.Random(1))
    learned = set(training_texts())
    # Others than the first 1 000 were learned too, or repeat them.
    filled = dict.fromkeys(filler.fill(rng.choice(templates)) for _ in range(1000))
    return _fit((text for text in filled if text not in learned), is_known)


def with_quotes(mark: str, is_known: IsKnown) -> Iterator[str]:
    """Plain sentences with their second and third word between marks, which the voice learned as apostrophes."""
    for text in plain(is_known):
        first, second, third, *others = text.split()
        yield " ".join([first, f"{mark}{second}", f"{third}{mark}", *others])


def in_two_parts(is_known: IsKnown) -> Iterator[str]:
    """Neighbouring sentences that the server speaks in two parts."""
    text = ""
    for sentence in plain(is_known):
        text = f"{text} {sentence}".strip()
        if (count := len(part_starts(text))) >= 2:
            if count == 2 and len(text) <= MAX_TWO_PARTS:
                yield text
            text = ""


def part_starts(text: str) -> list[int]:
    """The first character of each part in which the server speaks a text."""
    starts, is_open = list[int](), False
    for piece in _tokenizer().pieces(text, PART_TEXT_TOKENS):
        if not is_open:
            starts.append(piece.start)
        is_open = not piece.ends
    return starts


@cache
def _tokenizer() -> TextTokenizer:
    return TextTokenizer(Checkpoint.open(str(CHECKPOINT)), MAX_TOKENS)


def _fit(texts: Iterable[str], is_known: IsKnown) -> Iterator[str]:
    for text in texts:
        words = spoken_words(text)
        if len(words) >= MIN_WORDS and all(words) and all(is_known(part) for word in words for part in word):
            yield text


def _read_out(word: str) -> list[str]:
    """Numbers as the voice's teacher reads them: without "and"."""
    return re.findall(r"[a-z]+", num2words(int(word)).replace(" and ", " ")) if word.isdigit() else [word]
