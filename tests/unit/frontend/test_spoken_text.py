"""What is spoken of a text with markup, a lexicon and numbers, whole and in pieces."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qwen3_tts_engine.core.words import Written
from qwen3_tts_engine.frontend import text_rules
from qwen3_tts_engine.frontend.spoken_text import Origin, Passage, Rule, Spoken, SpokenText
from qwen3_tts_engine.frontend.text_rules import MARKUP, MAX_ENTRIES, Lexicon, Numbers, differences, find_markup
from qwen3_tts_engine.request import InvalidRequest

MARKUP_RULES = tuple(MARKUP.values())
ALPHABET = st.sampled_from([*"ab1 \n*_~`#>-|[]()!<\\.", "```", "<think>", "</think>", "**", "](", "😀", "\ufe0f", "東"])
LEXICON = Lexicon({"ab": "x", "A1": "exact", "b a": "two words", "東京": "tokyo", "東京都": "metropolis"})


def read(rules: Sequence[Rule], pieces: Sequence[str]) -> Spoken:
    [(spoken, pause)] = passages(rules, pieces)
    assert pause is None
    return spoken


def passages(rules: Sequence[Rule], pieces: Sequence[str]) -> list[Passage]:
    """Those of a whole text."""
    text, found = SpokenText(rules, 10_000), [Passage(Spoken(), None)]
    for number, piece in enumerate([*pieces, ""]):
        for spoken, pause in text.read(piece, ends=number == len(pieces)):
            found[-1] = Passage(found[-1].spoken + spoken, pause)
            if pause is not None:
                found.append(Passage(Spoken(), None))
    return found


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("**Bold**, *it*, __x__, _y_ and ~~gone~~", "Bold, it, x, y and gone"),
        ("un**believ**able", "unbelievable"),
        ("2 * 3, a*b, snake_case, ~5, 5 < 6, [1], (x)", "2 * 3, a*b, snake_case, ~5, 5 < 6, [1], (x)"),
        ("# Head\n\n- one\n* two\n1. three\n> quote\n---\nend", "Head\n\none\ntwo\n1. three\nquote\n\nend"),
        ('See [the docs](https://a.b/c "t") or ![a map](x.png)!', "See the docs or a map!"),
        ("<think>hm\n5 < 6</think>Yes. <b>x</b><|im_end|>", "Yes. x"),
        ("<think>never closed", ""),
        ("Run:\n```py\nx = 1\n```\nThen `make`.", "Run:\n\nThen make."),
        (r"\*so\*", "*so*"),
        ("Hi 😀 there 👩‍👩‍👧! 5️⃣ ok ☀️", "Hi there! 5 ok"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 |\nend", "a, b\n\n1, 2\nend"),
    ],
)
def test_markup_is_left_out(written: str, spoken: str) -> None:
    assert read(MARKUP_RULES, [written]).text == spoken
    assert read(MARKUP_RULES, [*written]).text == spoken
    assert (find_markup(written) is None) == (written == spoken)


@given(st.lists(ALPHABET, max_size=30), st.integers(1, 5))
@example(["```", "a", "```", "b"], 1)
@example(["東", "京", "a"], 1)
@example(["a", "|", "|", "a"], 1)
def test_pieces_are_read_as_the_whole_text(parts: list[str], size: int) -> None:
    whole = "".join(parts)
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    combinations: list[list[Rule]] = [[*MARKUP_RULES], [LEXICON], [*MARKUP_RULES, LEXICON]]
    for rules in combinations:
        assert read(rules, pieces) == read(rules, [whole])


def test_origins_are_characters_of_the_callers_text() -> None:
    spoken = read([*MARKUP_RULES, LEXICON], ["**ab** b"])
    assert spoken.text == "x b"
    assert spoken.origins == (Origin(2, 4), Origin(6, 7), Origin(7, 8))


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("Ab, AB and ab.", "x, x and x."),
        ("A1 but not a1", "exact but not a1"),
        ("cab abc ab_", "cab abc ab_"),
        ("B  A", "two words"),
        ("東京都と東京", "metropolisとtokyo"),
    ],
)
def test_lexicon_replaces_whole_words(written: str, spoken: str) -> None:
    assert read([LEXICON], [written]).text == spoken


def test_what_a_lexicon_wrote_is_not_replaced_again() -> None:
    assert read([Lexicon({"a": "b", "b": "a"})], ["a b"]).text == "b a"


@pytest.mark.parametrize(
    ("lexicon", "message"),
    [
        ("a: b", "lexicon: 'a: b': a JSON object"),
        ("[1]", "lexicon: '[1]': a JSON object"),
        ('{"a": 1}', "1 to 200 characters each"),
        ('{" ": "a"}', "1 to 200 characters each"),
        (json.dumps({"a": "b" * 201}), "1 to 200 characters each"),
        (
            json.dumps({str(n): "a" for n in range(MAX_ENTRIES + 1)}),
            f"'{MAX_ENTRIES + 1} entries'.*at most {MAX_ENTRIES}",
        ),
        ("[" * 100_000, "a JSON object"),
    ],
)
def test_lexicon_is_checked(lexicon: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message.replace("[1]", r"\[1\]")):
        Lexicon.parse(lexicon)


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("english", "It costs $5.20, 50% off!", "It costs five point two dollars, fifty percent off!"),
        ("english", "Dr. Smith ran 25 km.", "doctor Smith ran twenty five kilometers."),
        ("auto", "今天气温25℃，价格100元。", "今天气温二十五摄氏度，价格一百元。"),
        ("auto", "今日は2025年です。100円。", "今日は二千二十五年です。百円。"),
        ("german", "ganz ohne Zahl", "ganz ohne Zahl"),
    ],
)
def test_numbers_are_written_out(language: str, written: str, spoken: str) -> None:
    assert read([Numbers(language)], [written]).text == spoken
    assert read([Numbers(language)], [*written]).text == spoken


def test_a_table_of_numbers_is_spoken_as_it_is_written() -> None:
    for count, word in ((41, "7 "), (40, "seven ")):
        [(spoken, _)] = SpokenText([Numbers("english")], 100).read("7 " * count, ends=True)
        assert spoken.text == word * count


def test_a_number_waits_for_its_end_and_no_longer_than_the_next_word() -> None:
    text = SpokenText([Numbers("english")], 100)
    said = [text.read(piece, ends=False)[0].spoken.text for piece in ("It takes 2", "5 ", "km or ")]
    assert said == ["It takes ", "", "twenty five kilometers "]


def test_what_the_library_cannot_read_is_spoken_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def normalize(self, text: str) -> str:
            raise RuntimeError("no path")

    monkeypatch.setattr(text_rules, "normalizer", lambda code: Broken())
    assert read([Numbers("english")], ["It costs $5."]).text == "It costs $5."


@given(st.text("ab 1.", max_size=12), st.text("ab 1.", max_size=12))
def test_differences_make_one_text_of_the_other(before: str, after: str) -> None:
    if before:
        assert Spoken.verbatim(before, 0).replaced(differences(before, after)).text == after


def test_a_text_is_limited() -> None:
    text = SpokenText([], 10)
    text.read("12345", ends=False)
    with pytest.raises(InvalidRequest, match="at most 10 characters"):
        text.read("678901", ends=False)


BREAKS = "One.<break time='1.5s'/> Two <break  time=\"20ms\" /><break time='0s'/>"


@pytest.mark.parametrize("size", [1, 7, 100])
def test_breaks_divide_a_text(size: int) -> None:
    pieces = [BREAKS[start : start + size] for start in range(0, len(BREAKS), size)]
    found = [(spoken.text, pause) for spoken, pause in passages([*MARKUP_RULES], pieces)]
    assert found == [("One.", 1.5), (" Two ", 0.02), ("", 0.0), ("", None)]


def test_what_begins_like_a_break_is_spoken() -> None:
    assert [spoken.text for spoken, _ in passages([], [*"<breakfast> < b"])] == ["<breakfast> < b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a<break time='1s'", "a break is written"),
        ("a<break/>b", "a break is written"),
        ("<break><break time='1s'/></break>", "a break is written"),
        ("a<break time='600s'/>", "at most 10 s, and 60 s in a text"),
        ("a<break time='10s'/>" * 7, "at most 10 s, and 60 s in a text"),
        ("a<break time='-1s'/>", "a break is written"),
    ],
)
def test_a_wrong_break_is_refused(text: str, message: str) -> None:
    for pieces in ([text], [*text]):
        with pytest.raises(InvalidRequest, match=message):
            passages([], pieces)


def test_tells_what_was_written_for_what_is_spoken() -> None:
    text = SpokenText([LEXICON], 100)
    text.read("b<break time='1s'/> ab", ends=True)
    assert text.written(0, 2) == [Written(0, 1, "b"), Written(19, 20, " ")]
    assert text.written(2, 1) == [Written(20, 22, "ab")]


@pytest.mark.parametrize(
    "run", [" ", "1", "a", "*", "`", "|", "- ", "[", "<", "<think>", "😀", "東", "[a](", " |", "1 "]
)
def test_long_runs_are_read_in_linear_time(run: str) -> None:
    """By a pattern that is cubic in the length they would take days."""
    rules: list[Rule] = [*MARKUP_RULES, LEXICON, Numbers("english")]
    text = SpokenText(rules, 20_000)
    text.read(run * (9_000 // len(run)), ends=False)
    text.read(" x", ends=False)
    text.read("", ends=True)
    assert read(rules, ["one two"]).text == "one two"
