"""How right the word times of the demo voice are: compared with a forced alignment of what it said.

python -m scripts.benchmarks.word_times --output docs/benchmarks/word-times.json
"""

import json
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import soxr
import typer

from qwen3_tts_client.protocol import SAMPLE_RATE, SpeechRequest
from qwen3_tts_client.records.environment import environment
from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from scripts.benchmarks.common import origin_of
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.benchmarks.serving import REPOSITORY, run, server_of
from scripts.demo_voice.recognition import EAR_RATE, LEVEL
from scripts.demo_voice.served import Heard, ServedVoice
from scripts.demo_voice.sizes import VOICE_SPEAKERS
from scripts.demo_voice.texts import held_texts

ARTIFACTS = Path("artifacts") / "word-times"
# Silence before and after what is aligned, and the aligner's frames a second.
PAUSE, ALIGNED_RATE = EAR_RATE // 5, 100
MIN_WORDS = 4
# The first word begins with the utterance.
SKIPPED_WORDS = 1
Times = list[tuple[int, int]]


@dataclass(frozen=True)
class Measured:
    """Of the words of an utterance but the first: errors of begins and ends in seconds; whether the right number of
    words has begun at each frame's end; words without a time."""

    starts: np.ndarray
    ends: np.ndarray
    right: np.ndarray
    unknown: int


def main(
    checkpoint: Annotated[Path, typer.Option(help="in the released layout, with English voices")] = CHECKPOINT,
    sentences: Annotated[int, typer.Option(help="held-out sentences, spoken by each voice")] = 100,
    streams: Annotated[int, typer.Option(help="at a time")] = 2,
    processes: Annotated[int, typer.Option(help="that align")] = 2,
    artifact_dir: Annotated[Path, typer.Option(help="for the server's log")] = ARTIFACTS,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", "onnx")
    with server_of(str(checkpoint), max(streams, 8), artifact_dir / "server.log", []) as server:
        served = ServedVoice(f"localhost:{server.ports.grpc}", streams)
        spoken = {kind: speak(served, sentences, by_words=kind == "streamed") for kind in ("whole", "streamed")}
    with ProcessPoolExecutor(processes) as pool:
        figures = {kind: kind_figures(heard, pool) for kind, heard in spoken.items()}
    record = origin_of("scripts.benchmarks.word_times", environment())
    record_with_figures = record | {"utterances": sum(map(len, spoken.values())), **figures}
    print(json.dumps(figures, indent=1))
    if output:
        output.write_text(json.dumps(record_with_figures, indent=1) + "\n")


def texts(count: int) -> list[str]:
    """Held-out sentences without digits, which an aligner would have to read out."""
    fit = [text for text in held_texts() if not re.search(r"\d", text) and len(text.split()) >= MIN_WORDS]
    return fit[:count]


def speak(served: ServedVoice, sentences: int, *, by_words: bool) -> list[tuple[str, Heard]]:
    """Text and utterance of each voice's sentences."""
    requests = [
        SpeechRequest(text, speaker=speaker, language="english", seed=seed, word_times=True)
        for speaker in VOICE_SPEAKERS
        for seed, text in enumerate(texts(sentences))
    ]
    return [(request.text, heard) for request, heard in zip(requests, served(requests, by_words), strict=True)]


def kind_figures(spoken: Sequence[tuple[str, Heard]], pool: ProcessPoolExecutor) -> dict[str, Any]:
    found = [measured for measured in pool.map(measure, spoken, chunksize=4) if measured]
    starts, ends, right = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("starts", "ends", "right")
    )
    return {
        "sentences": len(found),
        "not_aligned": len(spoken) - len(found),
        "words": len(starts),
        "words_without_time": sum(one.unknown for one in found),
        **error_figures("start", starts),
        **error_figures("end", ends),
        "frames": len(right),
        "frames_with_the_right_words": round(float(right.mean()), 3),
    }


def error_figures(name: str, errors: np.ndarray) -> dict[str, float]:
    sizes = np.abs(errors)
    within = {f"{name}_within_{ms}_ms": round(float((sizes <= ms / 1e3 + 1e-9).mean()), 3) for ms in (80, 160)}
    return {
        f"{name}_bias_ms": round(1e3 * float(np.median(errors))),
        f"{name}_error_ms_p50": round(1e3 * float(np.median(sizes))),
        f"{name}_error_ms_p90": round(1e3 * float(np.percentile(sizes, 90))),
        **within,
    }


def measure(spoken: tuple[str, Heard]) -> Measured | None:
    """None for an utterance that cannot be aligned, for instance with a word that the dictionary lacks."""
    text, heard = spoken
    aligned = align(text, heard.samples)
    if aligned is None:
        return None
    told = {(word["first"], word["last"]): word for word in heard.words}
    found = [told.get((match.start(), match.end() - 1), {}) for match in re.finditer(r"\S+", text)]
    pairs = list(zip(found, aligned, strict=True))[SKIPPED_WORDS:]
    starts = [word["start"] - start for word, (start, _) in pairs if word.get("start") is not None]
    ends = [word["end"] - end for word, (_, end) in pairs if word.get("end") is not None]
    at = np.arange(SAMPLES_PER_FRAME, len(heard.samples) + 1, SAMPLES_PER_FRAME)
    begun = np.array([word["start"] for word, _ in pairs if word.get("start") is not None])
    right = (begun[:, None] <= at).sum(0) == (np.array([start for _, (start, _) in pairs])[:, None] <= at).sum(0)
    return Measured(np.array(starts) / SAMPLE_RATE, np.array(ends) / SAMPLE_RATE, right, len(pairs) - len(starts))


def align(text: str, samples: np.ndarray) -> Times | None:
    """First sample of each word of `text`, by white space, and the sample after its last; None where it fails."""
    words = [re.findall(r"[a-z']+", word.lower()) for word in text.split()]
    flat = [part for word in words for part in word]
    decoder = _decoder()
    if not all(words) or not all(decoder.lookup_word(part) for part in flat):
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
