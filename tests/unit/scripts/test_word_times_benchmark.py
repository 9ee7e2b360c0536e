"""Sentences and figures of the benchmarks of word times and of long texts."""

from itertools import islice

import numpy as np
import pytest

from scripts.benchmarks.held_sentences import (
    in_two_parts,
    part_starts,
    plain,
    spoken_words,
    with_digits,
    with_quotes,
)
from scripts.benchmarks.long_form import changes_of, long_texts, part_figures
from scripts.benchmarks.word_times import Kind, Spoken, figures, right_frames, rows_of
from scripts.demo_voice.served import Heard
from scripts.demo_voice.texts import held_texts, training_texts

FRAME = 1920


def is_known(word: str) -> bool:
    return word != "parcel"


def test_words_are_those_that_are_said() -> None:
    assert spoken_words("At 48, \"don't\" 7 '120' sixty-two") == [
        ["at"],
        ["forty", "eight"],
        ["don't"],
        ["seven"],
        ["one", "hundred", "twenty"],
        ["sixty", "two"],
    ]


def test_sentences_were_not_learned_and_can_be_aligned() -> None:
    texts, digits = list(plain(is_known)), list(with_digits(is_known))
    assert set(texts) <= set(held_texts())
    assert not set(digits) & set(training_texts())
    assert all(any(char.isdigit() for char in text) for text in digits)
    assert not any("parcel" in text for text in (*texts, *digits))
    assert next(with_quotes('"', is_known)) == 'Your "call is" important to us.'
    assert all(len(part_starts(text)) == 2 for text in islice(in_two_parts(is_known), 20))


def spoken(starts: list[float], told: list[float], frames: int) -> Spoken:
    """Words of a frame each, by the frames in which they begin."""
    aligned, found = (FRAME * np.array([[start, start + 1] for start in each]) for each in (starts, told))
    return Spoken(
        aligned, found, np.array([[10 * n, 10 * n + 5] for n in range(len(starts))]), 10 * frames, FRAME * frames
    )


def test_a_word_without_a_time_has_begun_with_the_next_one() -> None:
    one = spoken([1, 2.5, 4], [1, np.nan, 5], 8)
    assert right_frames(one, one.told).tolist() == [True, True, False, False, True, True, True, True]
    late = spoken([1, 2.5, 4], [1, 2, np.nan], 6)
    assert right_frames(late, late.told).tolist() == [True, False, True, False, False, False]


def test_figures_are_of_begins_in_milliseconds() -> None:
    one = spoken([1, 3, 5, 7], [1.5, 3, 4, np.nan], 10)
    found = figures([one], [one.told])
    assert (found["words"], found["without_time"], found["frames"]) == (4, 1, 10)
    assert (found["bias_ms"], found["median_ms"], found["within_80_ms"]) == (0, 40, 1.0)
    # Ten characters a frame.
    heads, rate = rows_of(Kind("plain", True, (1, 1)), "ryan", [one, None])
    assert (heads["layout"], heads["not_aligned"], heads["median_ms"]) == ("streaming", 1, 40)
    assert (rate["method"], rate["bias_ms"]) == ("rate", pytest.approx(-200))


def test_the_last_part_of_a_long_text_repeats_the_first() -> None:
    for text in long_texts(2, 6):
        starts = part_starts(text)
        assert len(starts) == 6
        assert text[: starts[1]].strip() == text[starts[-1] :]


def test_rate_and_loudness_of_parts() -> None:
    [text] = long_texts(1, 2)
    second, loud, quiet = part_starts(text)[1], 8000, 4000
    words = [
        {"first": 0, "start": 0, "end": FRAME * 5},
        {"first": 5, "start": FRAME * 5, "end": FRAME * 10},
        {"first": second, "start": FRAME * 20, "end": FRAME * 25},
    ]
    samples = np.concatenate([np.full(FRAME * 15, loud, np.int16), np.full(FRAME * 10, quiet, np.int16)])
    first, last = part_figures(text, Heard(samples, "stop", words))
    assert (first["words"], first["seconds"], first["words_per_s"], last["words_per_s"]) == (2, 0.8, 2.5, 2.5)
    rows = [figures | {"speaker": "ryan", "part": part} for part, figures in enumerate((first, last), 1)]
    changes = changes_of("ryan", rows, 2)
    assert (changes["rate_percent"], changes["loudness_db_most"]) == (0.0, pytest.approx(6.02))
