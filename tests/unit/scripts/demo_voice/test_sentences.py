"""Corpus, templates, held-out texts and the tokenizer."""

import random
import re

import pytest

from scripts.demo_voice.corpus import clauses, clean, finish, is_speakable
from scripts.demo_voice.templates import Filler
from scripts.demo_voice.texts import held_texts, training_texts, voice_of
from scripts.demo_voice.tokenizer import SpokenIds


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [("a  b ;", "a b"), ("`so'--he said", "so', he said"), ("(one) two .", "one two."), ("wait...", "wait.")],
)
def test_cleans_sentences(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@pytest.mark.parametrize("text", ["NASA was here", "a1b", "Größe", "x", "strngthsk", "see www.example"])
def test_refuses_what_cannot_be_read(text: str) -> None:
    assert not is_speakable(text)


def test_splits_long_verses_at_punctuation() -> None:
    verse = ", ".join(["and he went up into the hill country"] * 8)
    pieces = list(clauses(verse))
    assert len(pieces) > 1
    assert " ".join(pieces).replace(",", "") == verse.replace(",", "")


def test_finishes_sentences() -> None:
    assert finish("all is well", random.Random(0))[:1] == "A"
    assert finish("is it so?", random.Random(0)) == "Is it so?"


def test_the_same_seed_fills_the_same_sentences() -> None:
    def filled(seed: int) -> list[str]:
        filler = Filler({"hour": "one two", "city": "New York|Rome"}, ["cat"], random.Random(seed))
        return [filler.fill("{city} at {time}, {number} {noun}, {digits}, {year}, {large}") for _ in range(5)]

    assert filled(1) == filled(1) != filled(2)
    assert not any("{" in text for text in filled(1))


def test_held_out_sentences_are_not_learnt() -> None:
    assert not set(held_texts()) & set(training_texts())
    assert len(held_texts()) >= 400
    assert all(re.fullmatch(r"[ -~]+", text) for text in training_texts())


def test_both_voices_speak_about_equally_often() -> None:
    share = sum(voice_of(text, 2) for text in training_texts()[:2000]) / 2000
    assert 0.45 < share < 0.55


def test_text_stays_ahead_of_speech() -> None:
    """Speech has about 14 characters and 12.5 frames a second, and a frame feeds one token."""
    texts = list(training_texts()[:500])
    tokens = sum(map(len, SpokenIds().of(texts)))
    assert sum(map(len, texts)) / tokens > 2.5
