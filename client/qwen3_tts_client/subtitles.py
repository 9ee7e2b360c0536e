"""Subtitles of an utterance from the times of its words, as SubRip or WebVTT."""

import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.protocol import SAMPLE_RATE

MAX_LINES, MAX_COLUMNS = 2, 42
_SENTENCE_END = re.compile(r"[.!?…。！？｡][\"'”’»)\]」』）]*\Z")
_CLAUSE_END = re.compile(r"[,;:—–、，；：][\"'”’»)\]」』）]*\Z")


@dataclass(frozen=True)
class Cue:
    start: int  # sample
    end: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class _Unit:
    """A word with the punctuation after it; `space` is what separates it from the next one."""

    text: str
    space: str
    start: int | None  # sample
    end: int | None  # sample; where it is not known, the start of the next word


def check_subtitles(path: str) -> None:
    """Raises ClientError for a file whose name says of no format."""
    if Path(path).suffix.lower() not in _FORMATS:
        raise ClientError(f"--subtitles {path}: only {' and '.join(_FORMATS)} are written; name it so")


def subtitles(path: str, words: Sequence[dict[str, Any]], text: str, samples: int) -> str:
    """The content of a file; its suffix is that of a format. `text` is the whole text, `samples` those of the audio."""
    return _FORMATS[Path(path).suffix.lower()](cues(words, text, samples))


def cues(words: Sequence[dict[str, Any]], text: str, samples: int) -> list[Cue]:
    """A cue is a sentence, or as much of it as fits into two lines; more where times are not known."""
    found: list[Cue] = []
    units = _units(words, text, samples)
    begin, now = 0, 0
    while begin < len(units):
        start = units[begin].start
        start = now if start is None else max(now, start)
        end = _end_of_cue(units, begin, start)
        last = units[end - 1].end
        now = samples if last is None or last <= start else last
        if start < now:
            found.append(Cue(start, now, tuple(_lines(units[begin:end]))))
        begin = end
    return found


def _units(words: Sequence[dict[str, Any]], text: str, samples: int) -> list[_Unit]:
    units = []
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else None
        between = text[word["first"] : following["first"] if following else word["last"] + 1]
        end = word.get("end")
        if end is None:
            end = following["start"] if following else samples
        space = " " if between[-1:].isspace() else ""
        units.append(_Unit(" ".join(between.split()), space, word["start"], end))
    return units


def _end_of_cue(units: Sequence[_Unit], begin: int, start: int) -> int:
    """Where the cue from `begin` on ends: after a sentence, else after a clause of a full cue, else when it is full."""
    clause = best = 0
    for end in range(begin + 1, len(units) + 1):
        if best and len(_lines(units[begin:end])) > MAX_LINES:
            return clause if clause - begin > (best - begin) // 2 else best
        last = units[end - 1]
        if last.end is None or last.end <= start:
            continue
        best = end
        if _SENTENCE_END.search(last.text):
            return end
        if _CLAUSE_END.search(last.text):
            clause = end
    return len(units)


def _lines(units: Sequence[_Unit]) -> list[str]:
    """Lines of at most MAX_COLUMNS, unless a word is longer."""
    lines, space = [""], ""
    for unit in units:
        if lines[-1] and _columns(lines[-1] + space + unit.text) > MAX_COLUMNS:
            lines.append(unit.text)
        else:
            lines[-1] += (space if lines[-1] else "") + unit.text
        space = unit.space
    return lines


def _columns(text: str) -> int:
    """Chinese, Japanese and Korean characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _srt(found: Sequence[Cue]) -> str:
    blocks = [f"{number}\n{_times(cue, ',')}\n" + "\n".join(cue.lines) for number, cue in enumerate(found, 1)]
    return "".join(f"{block}\n\n" for block in blocks)


def _vtt(found: Sequence[Cue]) -> str:
    blocks = [f"{_times(cue, '.')}\n" + html.escape("\n".join(cue.lines), quote=False) for cue in found]
    return "".join(f"{block}\n\n" for block in ("WEBVTT", *blocks))


def _times(cue: Cue, point: str) -> str:
    return f"{_time(cue.start, point)} --> {_time(cue.end, point)}"


def _time(sample: int, point: str) -> str:
    milliseconds = round(sample * 1000 / SAMPLE_RATE)
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{milliseconds:03}"


_FORMATS: dict[str, Callable[[Sequence[Cue]], str]] = {".srt": _srt, ".vtt": _vtt}
