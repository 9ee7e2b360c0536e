"""What the demo voice says: words recognised, durations, ends, first audible sound.

    python -m scripts.benchmarks.demo_voice --output docs/benchmarks/demo-voice.json
    python -m scripts.benchmarks.demo_voice --form python --part ends --output docs/benchmarks/demo-voice.json

Each part replaces its own figures in the record.
"""

import json
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from qwen3_tts_client.protocol import SpeechRequest
from qwen3_tts_client.records.audible import THRESHOLD_DBFS
from qwen3_tts_client.records.environment import environment
from scripts.benchmarks.common import origin_of
from scripts.benchmarks.serving import REPOSITORY, read_summary, run, run_bench, server_of
from scripts.demo_voice import flite
from scripts.demo_voice.evaluation import report, teach
from scripts.demo_voice.recognition import Ears, cepstra
from scripts.demo_voice.served import ServedVoice
from scripts.demo_voice.sizes import FRAME, VOICE_SPEAKERS
from scripts.demo_voice.texts import held_texts

CHECKPOINT = Path(__file__).parents[1] / "demo_voice" / "tiny-speaking"
ARTIFACTS = Path("artifacts") / "demo-voice"
TEXT = "This sentence was made to measure how soon the first sound of the demonstration can be heard."
VOICES = range(len(flite.VOICES))
FULL_SCALE = 32768
Part = Literal["words", "ends"]
Sounds = list[np.ndarray]


def main(
    checkpoint: Annotated[Path, typer.Option(help="in the released layout")] = CHECKPOINT,
    form: Annotated[str, typer.Option(help="of the codec, as in `python -m export --form`")] = "onnx",
    part: Annotated[Part, typer.Option(help="words: recognised and timed; ends: why many utterances end")] = "words",
    sentences: Annotated[int, typer.Option(help="held-out sentences, spoken by each voice")] = 200,
    utterances: Annotated[int, typer.Option(help="of the part `ends`")] = 10_000,
    streams: Annotated[int, typer.Option(help="at a time; words must not arrive faster than they are spoken")] = 2,
    processes: Annotated[int, typer.Option(help="that recognise")] = 2,
    artifact_dir: Annotated[Path, typer.Option(help="for the server's log and the client's records")] = ARTIFACTS,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", form)
    with server_of(str(checkpoint), max(streams, 8), artifact_dir / "server.log", []) as server:
        url = f"localhost:{server.ports.grpc}"
        served = ServedVoice(url, streams)
        spoken = speak_words(served, sentences) if part == "words" else {}
        figures = count_ends(served, utterances) if part == "ends" else {}
        figures |= first_sound(artifact_dir, url)
    if spoken:
        figures |= word_figures(spoken, processes)
    print(json.dumps(figures, indent=1))
    if output:
        write(output, part, figures)


def speak_words(served: ServedVoice, sentences: int) -> dict[str, list[Sounds]]:
    """Sounds by kind and voice."""
    found: dict[str, list[Sounds]] = {"teacher": [teach(held_texts()[:sentences], voice) for voice in VOICES]}
    for kind in ("whole", "streamed"):
        by_words = kind == "streamed"
        found[kind] = [[heard.samples for heard in served(requests(voice, sentences), by_words)] for voice in VOICES]
    return found


def requests(voice: int, count: int) -> list[SpeechRequest]:
    """Held-out sentences, repeated with other seeds if there are fewer than `count`."""
    texts, speaker = held_texts(), VOICE_SPEAKERS[voice]
    return [
        SpeechRequest(texts[seed % len(texts)], speaker=speaker, language="english", seed=seed) for seed in range(count)
    ]


def count_ends(served: ServedVoice, utterances: int) -> dict[str, Any]:
    """`never_ending` reached their limit of frames; `wrongly_cut` were ended by a detector, so at most that many."""
    reasons = Counter(
        heard.finish_reason for voice in VOICES for heard in served(requests(voice, utterances // len(VOICES)))
    )
    return {
        "utterances": reasons.total(),
        "never_ending": reasons["length"],
        "wrongly_cut": reasons["silence"] + reasons["repetition"],
        "finish_reasons": dict(reasons),
    }


def first_sound(folder: Path, url: str) -> dict[str, Any]:
    """p50 in ms of one stream and of eight, with leading silence and without."""
    found: dict[str, Any] = {}
    for name, option in (("trimmed", "--trim-silence"), ("untrimmed", "--no-trim-silence")):
        load = ["--concurrency", "1,8", "--request-count", 40, "--warmup-request-count", 8]
        request = ["--text", TEXT, "--speaker", VOICE_SPEAKERS[0], "--language", "english", option]
        run_bench("bench", "--url", url, *load, *request, "--artifact-dir", folder / name)
        for row in read_summary(folder / name)["loads"]:
            found.setdefault(f"c={row['value']}", {})[name] = {
                "ttfa_ms": round(row["ttfa_ms"]["p50"], 3),
                "audible_ttfa_ms": round(row["audible_ttfa_ms"]["p50"], 3),
                "rtf": round(row["rtf"]["p50"], 3),
            }
    return {
        "audible_ttfa_ms": {load: each["trimmed"]["audible_ttfa_ms"] for load, each in found.items()},
        "first_sound": found,
    }


def word_figures(spoken: dict[str, list[Sounds]], processes: int) -> dict[str, Any]:
    """Means over the voices, and the figures of each."""
    tasks = [(kind, spoken[kind][voice], spoken["teacher"][voice]) for kind in spoken for voice in VOICES]
    with ProcessPoolExecutor(processes) as pool:
        reports = pool.map(_report, tasks)
        by_kind = {kind: [next(reports) for _ in VOICES] for kind in spoken}

    def mean(kind: str, figure: str) -> float:
        return round(float(np.mean([found[figure] for found in by_kind[kind]])), 3)

    levels = [level(sounds) for sounds in spoken["whole"]]
    return {
        "sentences": sum(map(len, spoken["whole"])),
        "wer": mean("whole", "wer"),
        "teacher_wer": mean("teacher", "wer"),
        "streamed_wer": mean("streamed", "wer"),
        "retrieval": mean("whole", "retrieval"),
        "durations_within_20_percent": mean("whole", "durations_within_20_percent"),
        "loudness_difference_db": round(max(levels) - min(levels), 2),
        "voices": {kind: dict(zip(flite.VOICES, found, strict=True)) for kind, found in by_kind.items()},
    }


def level(sounds: Sounds) -> float:
    """Mean power of the audible frames, in dBFS."""
    frames = np.concatenate([sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME) for sound in sounds])
    powers = np.mean((frames / FULL_SCALE) ** 2, axis=1)
    return float(10 * np.log10(powers[powers >= 10 ** (THRESHOLD_DBFS / 10)].mean()))


def write(output: Path, part: Part, figures: dict[str, Any]) -> None:
    own = origin_of("scripts.benchmarks.demo_voice", environment())
    found = json.loads(output.read_text()) if output.is_file() else {}
    found = found | own | {"parts": found.get("parts", {}) | {part: own | figures}}
    for figure in figures:
        if figure not in ("first_sound", "voices", "finish_reasons"):
            found[figure] = figures[figure]
    output.write_text(json.dumps(found, indent=1) + "\n")


def _report(task: tuple[str, Sounds, Sounds]) -> dict[str, float]:
    kind, found, teacher = task
    candidates = [cepstra(sound) for sound in teacher] if kind == "whole" else []
    return report(held_texts()[: len(found)], found, teacher, candidates, Ears())


if __name__ == "__main__":
    typer.run(main)
