"""Whether a voice keeps its rate and loudness over a long text, which the server speaks in parts with one seed.

python -m scripts.benchmarks.long_form --output docs/benchmarks/long-form.json

The last part has the words of the first one.
"""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from qwen3_tts_client.protocol import SAMPLE_RATE, SpeechRequest
from qwen3_tts_client.records.environment import environment
from qwen3_tts_client.records.prometheus import total
from scripts.benchmarks.common import origin_of, show
from scripts.benchmarks.demo_voice import CHECKPOINT, level
from scripts.benchmarks.held_sentences import part_starts, plain
from scripts.benchmarks.serving import REPOSITORY, run, scraped, server_of
from scripts.demo_voice.served import Heard, ServedVoice
from scripts.demo_voice.sizes import VOICE_SPEAKERS

ARTIFACTS = Path("artifacts") / "long-form"
SEED = 1
JUMPS = "qwen3_tts_text_jumps_total"
# The engine reports its metrics twice a second.
REPORTED_SECONDS = 1.5


def main(
    checkpoint: Annotated[Path, typer.Option(help="in the released layout, with English voices")] = CHECKPOINT,
    parts: Annotated[int, typer.Option(min=2, help="of a text")] = 20,
    texts: Annotated[int, typer.Option(help="spoken by each voice")] = 2,
    streams: Annotated[int, typer.Option(help="at a time")] = 4,
    artifact_dir: Annotated[Path, typer.Option(help="for the server's log")] = ARTIFACTS,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    origin = origin_of("scripts.benchmarks.long_form", environment())
    requests = [
        SpeechRequest(text, speaker=speaker, language="english", seed=SEED, word_times=True)
        for speaker in VOICE_SPEAKERS
        for text in long_texts(texts, parts)
    ]
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", "onnx")
    with server_of(str(checkpoint), max(streams, 8), artifact_dir / "server.log", []) as server:
        heard = ServedVoice(f"localhost:{server.ports.grpc}", streams)(requests)
        time.sleep(REPORTED_SECONDS)
        counted = scraped(server)
    rows = [
        {"speaker": request.speaker, "text": number % texts + 1, "part": part, **figures}
        for number, (request, one) in enumerate(zip(requests, heard, strict=True))
        for part, figures in enumerate(part_figures(request.text, one), 1)
    ]
    changes = [changes_of(speaker, rows, parts) for speaker in VOICE_SPEAKERS]
    jumps = {direction: total(counted, JUMPS, f'direction="{direction}"') for direction in ("ahead", "back")}
    for table in (rows, changes):
        show(table, Console())
    print(jumps)
    if output:
        record = origin | {"parts": parts, "changes": changes, "text_jumps": jumps, "rows": rows}
        output.write_text(json.dumps(record, indent=1) + "\n")


def long_texts(count: int, parts: int) -> list[str]:
    """Held-out sentences that make so many parts, the last of which repeats the first."""
    text, found = " ".join(plain(lambda word: True)), list[str]()
    starts = part_starts(text)
    for number in range(count):
        first, second, end = (starts[(parts - 1) * number + part] for part in (0, 1, parts - 1))
        found.append(text[first:end] + text[first:second].strip())
        assert len(part_starts(found[-1])) == parts
    return found


def part_figures(text: str, heard: Heard) -> list[dict[str, float]]:
    """Words, their seconds, rate and loudness of each part, from its first time to its last."""
    found = []
    for first, end in pairwise([*part_starts(text), len(text)]):
        words = [word for word in heard.words if first <= word["first"] < end]
        begins, ends = ([n for n, word in enumerate(words) if word.get(at) is not None] for at in ("start", "end"))
        words = words[begins[0] : ends[-1] + 1]
        start, stop = words[0]["start"], words[-1]["end"]
        seconds = (stop - start) / SAMPLE_RATE
        found.append(
            {
                "words": len(words),
                "seconds": round(seconds, 2),
                "words_per_s": round(len(words) / seconds, 3),
                "dbfs": round(level([heard.samples[start:stop]]), 2),
            }
        )
    return found


def changes_of(speaker: str, rows: list[dict[str, Any]], parts: int) -> dict[str, Any]:
    """From the first part to the last, of the same words: the mean over texts, and the largest."""
    first, last = ([row for row in rows if row["speaker"] == speaker and row["part"] == part] for part in (1, parts))
    pairs = list(zip(first, last, strict=True))
    rates = [100 * (end["words_per_s"] / begin["words_per_s"] - 1) for begin, end in pairs]
    levels = [end["dbfs"] - begin["dbfs"] for begin, end in pairs]
    return {
        "speaker": speaker,
        "rate_percent": round(float(np.mean(rates)), 1),
        "rate_percent_most": round(max(map(abs, rates)), 1),
        "loudness_db": round(float(np.mean(levels)), 2),
        "loudness_db_most": round(max(map(abs, levels)), 2),
    }


if __name__ == "__main__":
    typer.run(main)
