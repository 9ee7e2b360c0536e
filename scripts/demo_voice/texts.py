"""The sentences to speak: those to learn from, and those held out."""

import hashlib
import json
import lzma
import re
from functools import cache
from pathlib import Path

DATA = Path(__file__).parent / "data"
TEXTS, HELD = DATA / "texts.txt.xz", DATA / "held.txt"
EVERYDAY = Path(__file__).parents[2] / "client" / "qwen3_tts_client" / "bench" / "prompts" / "everyday.jsonl"
NUM_HELD = 400
HELD_LENGTHS = range(25, 91)


@cache
def training_texts() -> tuple[str, ...]:
    return tuple(lzma.open(TEXTS, "rt").read().splitlines())


@cache
def held_texts() -> tuple[str, ...]:
    return tuple(HELD.read_text().splitlines())


def voice_of(text: str, voices: int) -> int:
    """The voice that speaks a text."""
    return hashlib.md5(text.encode()).digest()[0] % voices


def write_texts(texts: list[str]) -> None:
    """Splits sentences into data/texts.txt.xz and data/held.txt; every word of the held ones can be recognised."""
    lines = [json.loads(line) for line in EVERYDAY.read_text().splitlines()]
    everyday = [line["text"] for line in lines if line["language"] == "english"]
    fit = [text for text in texts if len(text) in HELD_LENGTHS and not re.search(r"[\d$%]", text)]
    held = [*everyday, *fit[:NUM_HELD]]
    HELD.write_text("\n".join(held) + "\n")
    with lzma.open(TEXTS, "wt", preset=9) as file:
        file.write("\n".join(text for text in dict.fromkeys(texts) if text not in set(held)) + "\n")
