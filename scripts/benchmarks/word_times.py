"""How right the word times of the demo voice are: compared with a forced alignment of what it said.

python -m scripts.benchmarks.word_times --output docs/benchmarks/word-times.json
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import soxr
import typer
from rich.console import Console

from qwen3_tts_client.protocol import SAMPLE_RATE, SpeechRequest
from qwen3_tts_client.records.environment import environment
from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from scripts.benchmarks.common import origin_of, show
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.benchmarks.held_sentences import IsKnown, in_two_parts, plain, spoken_words, with_digits, with_quotes
from scripts.benchmarks.serving import REPOSITORY, run, server_of
from scripts.demo_voice.recognition import EAR_RATE, LEVEL
from scripts.demo_voice.served import Heard, ServedVoice
from scripts.demo_voice.sizes import VOICE_SPEAKERS

ARTIFACTS = Path("artifacts") / "word-times"
# Silence before and after what is aligned, and the aligner's frames a second.
PAUSE, ALIGNED_RATE = EAR_RATE // 5, 100
# The first word begins with the utterance.
SKIPPED_WORDS = 1
TEXTS: dict[str, Callable[[IsKnown], Iterator[str]]] = {
    "plain": plain,
    "digits": with_digits,
    "single quotes": partial(with_quotes, "'"),
    "double quotes": partial(with_quotes, '"'),
    "two parts": in_two_parts,
}
Times = list[tuple[int, int]]


class Kind(NamedTuple):
    """What a row measures; `sentences` of each voice. Streamed text is in the layout `streaming`, whole in `full`."""

    text: str
    is_streamed: bool
    sentences: tuple[int, int]

    @property
    def layout(self) -> str:
        return "streaming" if self.is_streamed else "full"


KINDS = (
    Kind("plain", False, (205, 60)),
    Kind("digits", False, (60, 60)),
    Kind("single quotes", False, (20, 20)),
    Kind("double quotes", False, (20, 20)),
    Kind("two parts", False, (15, 15)),
    Kind("plain", True, (60, 60)),
    Kind("digits", True, (40, 40)),
    Kind("single quotes", True, (24, 24)),
    Kind("double quotes", True, (24, 24)),
    Kind("two parts", True, (10, 10)),
)


@dataclass(frozen=True)
class Spoken:
    """An utterance's words but the first: begin and end of each in samples, float64 [words, 2], as aligned and as the
    server told (NaN: without a time), and its first character and the one after its last, [words, 2]."""

    aligned: np.ndarray
    told: np.ndarray
    characters: np.ndarray
    num_characters: int
    num_samples: int


def main(
    checkpoint: Annotated[Path, typer.Option(help="in the released layout, with English voices")] = CHECKPOINT,
    most: Annotated[int, typer.Option(help="sentences of a row at most")] = 205,
    streams: Annotated[int, typer.Option(help="at a time")] = 4,
    processes: Annotated[int, typer.Option(help="that align")] = 2,
    form: Annotated[str, typer.Option(help="of the codec, as in `python -m export --form`; on a GPU python")] = "onnx",
    artifact_dir: Annotated[Path, typer.Option(help="for the server's log")] = ARTIFACTS,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    origin = origin_of("scripts.benchmarks.word_times", environment())
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", form)
    rows = list[dict[str, Any]]()
    with (
        server_of(str(checkpoint), max(streams, 8), artifact_dir / "server.log", []) as server,
        ProcessPoolExecutor(processes) as pool,
    ):
        served = ServedVoice(f"localhost:{server.ports.grpc}", streams)
        for kind in KINDS:
            for speaker, count in zip(VOICE_SPEAKERS, kind.sentences, strict=True):
                heard = speak(served, kind, speaker, min(count, most))
                rows += rows_of(kind, speaker, list(pool.map(measure, heard, chunksize=4)))
                show(rows[-2:], Console(width=200))
    if output:
        output.write_text(json.dumps(origin | {"rows": rows}, indent=1) + "\n")


def speak(served: ServedVoice, kind: Kind, speaker: str, count: int) -> list[tuple[str, Heard]]:
    requests = [
        SpeechRequest(text, speaker=speaker, language="english", seed=seed, word_times=True)
        for seed, text in enumerate(islice(TEXTS[kind.text](in_dictionary), count))
    ]
    return [(request.text, heard) for request, heard in zip(requests, served(requests, kind.is_streamed), strict=True)]


def rows_of(kind: Kind, speaker: str, measured: Sequence[Spoken | None]) -> list[dict[str, Any]]:
    """The row of the heads, and that of a guess by the mean rate of these utterances."""
    found = [spoken for spoken in measured if spoken]
    rate = sum(spoken.num_characters for spoken in found) / sum(spoken.num_samples for spoken in found)
    methods = {"heads": [spoken.told for spoken in found], "rate": [spoken.characters / rate for spoken in found]}
    columns = {"text": kind.text, "layout": kind.layout, "speaker": speaker}
    counts = {"sentences": len(found), "not_aligned": len(measured) - len(found)}
    return [columns | {"method": name} | counts | figures(found, times) for name, times in methods.items()]


def figures(spoken: Sequence[Spoken], times: Sequence[np.ndarray]) -> dict[str, float]:
    """`times` are begin and end of the utterances' words in samples, [words, 2]. Errors are of begins but `end_…`."""
    errors = np.concatenate([found - one.aligned for one, found in zip(spoken, times, strict=True)]) / SAMPLE_RATE * 1e3
    starts, ends = (np.abs(column[~np.isnan(column)]) for column in errors.T)
    right = np.concatenate([right_frames(one, found) for one, found in zip(spoken, times, strict=True)])
    return {
        "words": len(errors),
        "without_time": int(np.isnan(errors[:, 0]).sum()),
        "bias_ms": round(float(np.nanmedian(errors[:, 0]))),
        "median_ms": round(float(np.median(starts))),
        "p90_ms": round(float(np.percentile(starts, 90))),
        **{f"within_{ms}_ms": round(float((starts <= ms + 1e-6).mean()), 3) for ms in (80, 160)},
        "end_median_ms": round(float(np.median(ends))),
        "end_p90_ms": round(float(np.percentile(ends, 90))),
        "frames": len(right),
        "words_right": round(float(right.mean()), 3),
    }


def right_frames(spoken: Spoken, times: np.ndarray) -> np.ndarray:
    """Whether the right number of words has begun at the end of each frame. One without a time has begun once the next
    one has."""
    at = np.arange(SAMPLES_PER_FRAME, spoken.num_samples + 1, SAMPLES_PER_FRAME)
    starts = np.where(np.isnan(times[:, 0]), np.inf, times[:, 0])
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    begun, expected = ((each[:, None] <= at).sum(0) for each in (starts, spoken.aligned[:, 0]))
    right: np.ndarray = begun == expected
    return right


def measure(spoken: tuple[str, Heard]) -> Spoken | None:
    """None for an utterance that cannot be aligned."""
    text, heard = spoken
    aligned = align(text, heard.samples)
    if aligned is None:
        return None
    told = {(word["first"], word["last"] + 1): word for word in heard.words}
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    # Without a time is also a word that did not begin.
    times = [[told.get(span, {}).get(name) for name in ("start", "end")] for span in spans]
    truth, told_times, characters = (np.array(each[SKIPPED_WORDS:], np.float64) for each in (aligned, times, spans))
    return Spoken(truth, told_times, characters, len(text), len(heard.samples))


def in_dictionary(word: str) -> bool:
    return bool(_decoder().lookup_word(word))


def align(text: str, samples: np.ndarray) -> Times | None:
    """First sample of each word of `text`, by white space, and the sample after its last; None where it fails."""
    words = spoken_words(text)
    flat = [part for word in words for part in word]
    decoder = _decoder()
    if not all(words) or not all(in_dictionary(part) for part in flat):
        return None
    sound = soxr.resample(samples.astype(np.float32), SAMPLE_RATE, EAR_RATE)
    sound = np.pad(sound * (LEVEL / max(1.0, np.abs(sound).max())), PAUSE)
    # Digital silence would be no sound at all.
    sound += 5 * np.random.default_rng(0).standard_normal(len(sound))
    decoder.set_align_text(" ".join(flat))
    try:
        decoder.start_utt()
        decoder.process_raw(sound.astype(np.int16).tobytes(), full_utt=True)
        decoder.end_utt()
    except RuntimeError:
        return None
    if not decoder.hyp():
        return None
    segments = [part for part in decoder.seg() if not part.word.startswith(("<", "["))]
    if [re.sub(r"\(\d+\)$", "", part.word) for part in segments] != flat:
        return None
    times, at = Times(), 0
    for word in words:
        first, last = segments[at], segments[at + len(word) - 1]
        times.append((_sample(first.start_frame), _sample(last.end_frame + 1)))
        at += len(word)
    return times


def _sample(frame: int) -> int:
    """The sample of the utterance at which a frame of the aligner begins."""
    return round((frame / ALIGNED_RATE - PAUSE / EAR_RATE) * SAMPLE_RATE)


@cache
def _decoder() -> Any:
    from pocketsphinx import Decoder

    return Decoder(samprate=EAR_RATE, loglevel="FATAL", lm=None)


if __name__ == "__main__":
    typer.run(main)
