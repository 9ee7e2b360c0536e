"""Figures of scripts.benchmarks.long_texts."""

from collections import Counter

import pytest

from scripts.benchmarks import long_texts
from scripts.benchmarks.long_texts import Spoken, Text
from scripts.demo_voice.recognition import word_errors, words_heard
from scripts.demo_voice.sizes import VOICE_SPEAKERS

POOL = 100


@pytest.mark.parametrize(
    ("heard", "words", "errors"),
    [
        ("One two, three four.", 4, 0),
        ("two four", 2, 2),
        ("one too three for", 2, 2),
        ("four three two one", 1, 4),
        ("", 0, 4),
        ("and one and two and three and four", 4, 4),
    ],
)
def test_words_count_where_they_belong(heard: str, words: int, errors: int) -> None:
    assert words_heard("One two three four.", heard) == (words, 4)
    assert word_errors("One two three four.", heard) == (errors, 4)


def test_texts_have_1_to_20_different_sentences() -> None:
    texts = list(long_texts.long_texts(200, POOL))
    counts = Counter((text.speaker, len(text.sentences)) for text in texts)
    assert counts == {(speaker, length): 5 for speaker in VOICE_SPEAKERS for length in range(1, 21)}
    assert all(len(set(text.sentences)) == len(text.sentences) for text in texts)
    assert texts == list(long_texts.long_texts(200, POOL))
    assert len(long_texts.sentences()) >= POOL


def test_shares_are_compared_with_those_of_the_same_sentences() -> None:
    alone = [spoken((0,), 10, 9), spoken((1,), 5, 5), spoken((2,), 5, 0)]
    together = [spoken((0,), 10, 8), spoken((0, 1, 1, 0, 1, 1), 40, 20)]
    figures = long_texts.figures_of(together, long_texts.by_sentence(alone))
    assert (figures["words"], figures["words_heard"], figures["words_heard_alone"]) == (50, 0.56, 0.94)
    assert (figures["seconds"], figures["seconds_alone"]) == (2.0, 7.0)
    assert figures["finish_reasons"] == {"stop": 2}
    rows = [(row["sentences_a_text"], row["words_heard"]) for row in figures["rows"]]
    assert rows == [("1 to 5", 0.8), ("6 to 10", 0.5)]


def spoken(numbers: tuple[int, ...], words: int, heard: int) -> Spoken:
    return Spoken(Text("ryan", numbers, 0), "stop", 1.0, words, heard)
