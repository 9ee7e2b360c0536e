"""`qwen3-tts say --file`: a long text, passage by passage; a second run goes on where the first one was interrupted."""

import argparse
import hashlib
import json
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qwen3_tts_client import options
from qwen3_tts_client.errors import ClientError, ExitCode, SpeechError, reported
from qwen3_tts_client.protocol import SAMPLE_RATE, SpeechRequest, encode, merged
from qwen3_tts_client.sentences import TextPart, split
from qwen3_tts_client.server import Server
from qwen3_tts_client.stream import Responses
from qwen3_tts_client.sync_stream import speak
from qwen3_tts_client.wav import WavWriter

# Far fewer tokens than a request may have, in every language.
MAX_CHARACTERS = 800
PARAGRAPH_PAUSE = SAMPLE_RATE // 2
_PARAGRAPH = re.compile(r"\S(?:(?!\n[ \t]*\n).)*", re.DOTALL)


class Passage(NamedTuple):
    """Text from character `first` of the file on; `ends` a paragraph."""

    first: int
    text: str
    ends: bool


@dataclass
class Progress:
    """What is spoken of a file; `digest` is that of its text and of the request."""

    digest: str
    seed: int
    passages: int = 0
    samples: int = 0
    words: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path, digest: str) -> "Progress | None":
        """None without an interrupted run of the same text and request."""
        try:
            found = cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.digest == digest else None

    def write(self, file: Path) -> None:
        with reported(str(file)):
            new = file.with_name(f"{file.name}.new")
            new.write_text(json.dumps(asdict(self)), encoding="utf-8")
            new.replace(file)


def read_text(path: Path) -> str:
    """Raises ClientError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ClientError(f"--file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ClientError(f"--file {path}: byte {error.start} is not UTF-8: convert the file") from None
    if not text.strip():
        raise ClientError(f"--file {path}: no text")
    return text


def divide(text: str) -> Iterator[Passage]:
    """Paragraphs, long ones in parts of at most MAX_CHARACTERS."""
    for paragraph in _PARAGRAPH.finditer(text):
        parts = split(TextPart(paragraph.start(), paragraph[0].rstrip()), MAX_CHARACTERS)
        for number, (first, part) in enumerate(parts, 1):
            yield Passage(first, part, number == len(parts))


def say_file(
    args: argparse.Namespace, request: SpeechRequest, text: str, server: Server
) -> tuple[list[dict[str, Any]], int]:
    """Speaks `text` into the WAV file; returns its words, if they were asked for, and samples. Raises ClientError."""
    output, passages = Path(args.output), list(divide(text))
    note = output.with_name(f"{output.name}.progress")
    digest = hashlib.sha256(f"{text}\n{request}".encode()).hexdigest()
    progress = (Progress.read(note, digest) if output.exists() else None) or Progress(digest, secrets.randbits(31))
    if progress.passages:
        print(f"goes on with passage {progress.passages + 1} of {len(passages)}", file=sys.stderr)
    # One seed, so that a voice without one does not change between passages.
    request = replace(request, seed=progress.seed if request.seed is None else request.seed)
    with closing(WavWriter(output, SAMPLE_RATE, progress.samples)) as writer:
        for number in range(progress.passages, len(passages)):
            passage = passages[number]
            pcm, words = _speak(args, server, replace(request, text=passage.text))
            progress.words += [_moved(word, passage.first, progress.samples) for word in words]
            if passage.ends and number + 1 < len(passages):
                pcm = np.concatenate([pcm, np.zeros(PARAGRAPH_PAUSE, np.int16)])
            writer.write(pcm)
            progress.passages, progress.samples = number + 1, progress.samples + len(pcm)
            progress.write(note)
            minutes, seconds = divmod(progress.samples // SAMPLE_RATE, 60)
            print(f"passage {number + 1} of {len(passages)}, {minutes}:{seconds:02} of speech", file=sys.stderr)
    note.unlink()
    return progress.words, progress.samples


def _speak(args: argparse.Namespace, server: Server, request: SpeechRequest) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """int16 [samples], and the words. Raises ClientError; a second run then goes on with this passage."""
    responses, chunks, words = Responses(), [np.empty(0, np.int16)], list[dict[str, Any]]()
    try:
        for _, chunk in speak(server.stub, [encode(request, args.model_name)], options.timeouts(args), responses):
            chunks.append(chunk.pcm)
            words += chunk.words
    except SpeechError as error:
        raise ClientError(f"{error}; the same command goes on from there", ExitCode.REQUEST) from None
    return np.concatenate(chunks), merged([*words, *(responses.end.words if responses.end else ())])


def _moved(word: dict[str, Any], characters: int, samples: int) -> dict[str, Any]:
    moved = word | {name: word[name] + characters for name in ("first", "last")}
    return moved | {name: word[name] + samples for name in ("start", "end") if word.get(name) is not None}
