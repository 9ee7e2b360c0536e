"""Subtitles, read back by the rules of SubRip and WebVTT, and by libavformat."""

import html
import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.subtitles import MAX_COLUMNS, subtitles
from tests.fakes.word_server import WORD_SAMPLES, WordServer

FRAME = 1920
LINES = {
    ".srt": re.compile(r"(\d\d):([0-5]\d):([0-5]\d),(\d{3}) --> (\d\d):([0-5]\d):([0-5]\d),(\d{3})"),
    ".vtt": re.compile(r"(\d\d):([0-5]\d):([0-5]\d)\.(\d{3}) --> (\d\d):([0-5]\d):([0-5]\d)\.(\d{3})"),
}
TEXT = (
    "Hello there! “I saw <Tom & Anna>,” she said – quietly – to nobody at all, and then walked all the way home. "
    "Good night."
)


def parsed(content: str, suffix: str) -> list[tuple[int, int, list[str]]]:
    """(start, end, lines) of each cue, in milliseconds."""
    assert "\r" not in content
    assert content.endswith("\n\n") or not content
    blocks = [block for block in content.split("\n\n") if block]
    if suffix == ".vtt":
        assert blocks.pop(0) == "WEBVTT"
    cues: list[tuple[int, int, list[str]]] = []
    for number, block in enumerate(blocks, 1):
        lines = block.split("\n")
        if suffix == ".srt":
            assert lines.pop(0) == str(number)
        match = LINES[suffix].fullmatch(lines.pop(0))
        assert match
        assert lines
        assert all(line.strip() for line in lines)
        h, m, s, ms, *end = map(int, match.groups())
        begin_ms, end_ms = ((h * 60 + m) * 60 + s) * 1000 + ms, ((end[0] * 60 + end[1]) * 60 + end[2]) * 1000 + end[3]
        if suffix == ".vtt":
            assert not re.search(r"[<>]|&(?!amp;|lt;|gt;)", "".join(lines))
            lines = [html.unescape(line) for line in lines]
        cues.append((begin_ms, end_ms, lines))
    assert all(start < end for start, end, _ in cues)
    assert all(one[1] <= other[0] for one, other in pairwise(cues))
    return cues


def words_of(text: str, pattern: str = r"\S*\w\S*", frames: int = 3) -> tuple[list[dict[str, Any]], int]:
    """Words of three frames each, the last of which is a pause, and the samples of all."""
    words = [
        {"index": i, "word": m[0], "first": m.start(), "last": m.end() - 1, "start": i * frames * FRAME}
        | {"end": (i + 1) * frames * FRAME - FRAME}
        for i, m in enumerate(re.finditer(pattern, text))
    ]
    return words, len(words) * frames * FRAME


@pytest.mark.parametrize("suffix", [".srt", ".vtt"])
def test_a_cue_is_a_sentence_or_two_lines(suffix: str) -> None:
    words, samples = words_of(TEXT)
    cues = parsed(subtitles(f"a{suffix}", words, TEXT, samples), suffix)
    assert [lines for _, _, lines in cues] == [
        ["Hello there!"],
        ["“I saw <Tom & Anna>,” she said – quietly –", "to nobody at all,"],
        ["and then walked all the way home."],
        ["Good night."],
    ]
    assert cues[0][:2] == (0, 400)
    assert cues[-1][:2] == (240 * (len(words) - 2), 240 * len(words) - 80)


def test_scripts_without_spaces_have_none() -> None:
    text = "今天天气很好，我们去公园散步吧。" * 2 + "Café 你好"
    words, samples = words_of(text, pattern=r"[\u4e00-\u9fff][，。]?|\w+")
    cues = parsed(subtitles("a.srt", words, text, samples), ".srt")
    assert [lines for _, _, lines in cues] == [["今天天气很好，我们去公园散步吧。"]] * 2 + [["Café 你好"]]
    words, samples = words_of("好" * 60, pattern="好")
    assert [lines for _, _, lines in parsed(subtitles("a.srt", words, "好" * 60, samples), ".srt")] == [
        ["好" * 21, "好" * 21],
        ["好" * 18],
    ]


def test_hours_are_counted() -> None:
    words, _ = words_of("Late.")
    words[0] |= {"start": 24_000 * 3725, "end": 24_000 * 3726}
    assert "01:02:05,000 --> 01:02:06,000" in subtitles("A.SRT", words, "Late.", 24_000 * 3730)


def test_no_words_are_no_cues() -> None:
    assert (subtitles("a.srt", [], "", 0), subtitles("a.vtt", [], "", 0)) == ("", "WEBVTT\n\n")


@pytest.mark.parametrize("suffix", [".srt", ".vtt"])
@given(
    drawn=st.lists(
        st.tuples(st.text(st.characters(categories=["L", "P", "S"]), min_size=1, max_size=50), st.integers(0, 5)),
        max_size=40,
    ),
    unknown=st.sets(st.integers(0, 79)),
)
def test_any_words_are_well_formed_cues(suffix: str, drawn: list[tuple[str, int]], unknown: set[int]) -> None:
    """Each word comes once and in order; a word of no frames, or of unknown time, joins another cue."""
    text = " ".join(word for word, _ in drawn)
    words, first, now = [], 0, 0
    for index, (word, frames) in enumerate(drawn):
        start, end = now, now + frames * FRAME
        times = {"start": None if index in unknown else start, "end": None if index + 40 in unknown else end}
        words.append({"index": index, "word": word, "first": first, "last": first + len(word) - 1, **times})
        first, now = first + len(word) + 1, end
    cues = parsed(subtitles(f"a{suffix}", words, text, now + FRAME), suffix)
    shown = [word for _, _, lines in cues for line in lines for word in line.split()]
    assert shown == text.split()
    if not unknown and all(frames for _, frames in drawn):
        assert all(len(lines) <= 2 or any(len(word) > MAX_COLUMNS // 2 for word in lines) for _, _, lines in cues)


@pytest.mark.parametrize("suffix", [".srt", ".vtt"])
def test_say_writes_what_a_player_reads(suffix: str, tmp_path: Path) -> None:
    path, server = tmp_path / f"speech{suffix}", WordServer(unknown={"night."})
    with server:
        arguments = ["--output", str(tmp_path / "speech.wav"), "--subtitles", str(path)]
        assert main(["say", "--url", server.url, TEXT, *arguments]) == 0
    cues = parsed(path.read_text(), suffix)
    format_name = {".srt": "srt", ".vtt": "webvtt"}[suffix]
    with av.open(io.BytesIO(path.read_bytes()), "r", format=format_name) as file:
        packets = [packet for packet in file.demux() if packet.size]
    assert [(p.pts, p.duration) for p in packets] == [(start, end - start) for start, end, _ in cues]
    assert "".join(" ".join(lines) for *_, lines in cues).startswith("Hello there!“I saw <Tom")
    assert cues[0][1] == round(2 * WORD_SAMPLES / 24) - 20
    assert cues[-1][1] == len(TEXT.split()) * WORD_SAMPLES // 24, "not known, so until the end"


@pytest.mark.parametrize(
    ("path", "message", "code"),
    [
        ("speech.txt", "only .srt and .vtt are written", 2),
        ("speech", "only .srt and .vtt are written", 2),
        ("missing/speech.srt", "No such file or directory", 6),
    ],
)
def test_a_file_that_cannot_be_written_is_named(
    path: str, message: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = WordServer()
    with server:
        arguments = ["--output", str(tmp_path / "a.wav"), "--subtitles", str(tmp_path / path)]
        assert main(["say", "--url", server.url, "Hello.", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error
    assert path in error
