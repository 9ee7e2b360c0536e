"""A long text is divided into passages of paragraphs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.long_text import MAX_CHARACTERS, PARAGRAPH_PAUSE, Progress, divide, read_text
from qwen3_tts_client.protocol import SAMPLE_RATE


def test_paragraphs_are_half_a_second_apart() -> None:
    assert PARAGRAPH_PAUSE / SAMPLE_RATE == 0.5


def test_paragraphs_are_passages() -> None:
    text = "\n One.\nTwo.  \n \n\nThree.\n"
    found = list(divide(text))
    assert [(passage.text, passage.ends) for passage in found] == [("One.\nTwo.", True), ("Three.", True)]
    assert all(text[first:].startswith(part) for first, part, _ in found)


@given(st.lists(st.sampled_from(["Word. ", "word ", "字。", "\n\n", "x" * 300 + "! "]), max_size=40).map("".join))
def test_passages_hold_all_of_the_text(text: str) -> None:
    found = list(divide(text))
    assert "".join("".join(passage.text for passage in found).split()) == "".join(text.split())
    for passage in found:
        assert text[passage.first : passage.first + len(passage.text)] == passage.text
    sentences = [passage.text for passage in found if passage.text.count(".") + passage.text.count("!") > 1]
    assert all(len(sentence) <= MAX_CHARACTERS for sentence in sentences)
    assert sum(passage.ends for passage in found) == len([part for part in text.split("\n\n") if part.strip()])


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b" \n", "no text"), (b"ab\xff", "byte 2 is not UTF-8: convert the file")],
)
def test_a_file_that_cannot_be_spoken_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "book.txt").write_bytes(content)
    with pytest.raises(ClientError, match=f"--file .*book.txt: {message}"):
        read_text(tmp_path / "book.txt")


def test_progress_is_that_of_the_same_text(tmp_path: Path) -> None:
    Progress("a", 1, 2, 3, [{"index": 0}]).write(tmp_path / "note")
    assert Progress.read(tmp_path / "note", "a") == Progress("a", 1, 2, 3, [{"index": 0}])
    assert Progress.read(tmp_path / "note", "b") is None
    (tmp_path / "note").write_text("{")
    assert Progress.read(tmp_path / "note", "a") is None
