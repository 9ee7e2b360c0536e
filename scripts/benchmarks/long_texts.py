"""How much of a long text the demo voice says: words heard in texts of 1 to 20 sentences, and in each sentence alone.

python -m scripts.benchmarks.long_texts --output docs/benchmarks/long-texts.json
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from qwen3_tts_client.protocol import SAMPLE_RATE, SpeechRequest
from qwen3_tts_client.records.environment import environment
from scripts.benchmarks.common import origin_of
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.benchmarks.serving import REPOSITORY, increase, run, scraped, server_of
from scripts.demo_voice.recognition import Ears, words_heard
from scripts.demo_voice.served import Heard, ServedVoice
from scripts.demo_voice.sizes import VOICE_SPEAKERS
from scripts.demo_voice.texts import held_texts

ARTIFACTS = Path("artifacts") / "long-texts"
MOST_SENTENCES, MIN_WORDS = 20, 4
# Numbers of sentences that share a row of the record.
BAND = 5


@dataclass(frozen=True)
class Text:
    """What a speaker says, as numbers of held-out sentences."""

    speaker: str
    sentences: tuple[int, ...]
    seed: int

    @property
    def request(self) -> SpeechRequest:
        text = " ".join(sentences()[number] for number in self.sentences)
        return SpeechRequest(text, speaker=self.speaker, language="english", seed=self.seed)


@dataclass(frozen=True)
class Spoken:
    """An utterance: why it ended, how many words it has and how many of them the recogniser found."""

    text: Text
    finish_reason: str | None
    seconds: float
    words: int
    words_heard: int


# By speaker and number of the sentence.
Alone = Mapping[tuple[str, int], Spoken]


def main(
    checkpoint: Annotated[Path, typer.Option(help="in the released layout, with English voices")] = CHECKPOINT,
    texts: Annotated[int, typer.Option(help="of 1 to 20 sentences, spoken by the voices in turn")] = 200,
    pool: Annotated[int, typer.Option(help="sentences that the texts consist of")] = 100,
    streams: Annotated[int, typer.Option(help="at a time")] = 4,
    processes: Annotated[int, typer.Option(help="that recognise")] = 2,
    artifact_dir: Annotated[Path, typer.Option(help="for the server's log and each text's figures")] = ARTIFACTS,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    single, long = list(single_sentences(pool)), list(long_texts(texts, pool))
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", "onnx")
    with server_of(str(checkpoint), max(streams, 8), artifact_dir / "server.log", []) as server:
        served = ServedVoice(f"localhost:{server.ports.grpc}", streams)
        heard = [served([text.request for text in single])]
        before = scraped(server)
        heard.append(served([text.request for text in long]))
        continued = increase(before, scraped(server), "qwen3_tts_continued_parts_total")
    with ProcessPoolExecutor(processes) as workers:
        alone, spoken = (
            list(workers.map(recognise, *pair, chunksize=4)) for pair in zip((single, long), heard, strict=True)
        )
    figures = figures_of(spoken, by_sentence(alone)) | {"continued_parts": int(continued)}
    (artifact_dir / "texts.json").write_text(json.dumps([asdict(one) for one in (*alone, *spoken)], indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    if output:
        record = origin_of("scripts.benchmarks.long_texts", environment()) | figures
        output.write_text(json.dumps(record, indent=1) + "\n")


@cache
def sentences() -> list[str]:
    """Held-out sentences one by one, without digits, which a recogniser writes out."""
    fit = re.compile(r"[^.!?\d]+[.!?]")
    return [text for text in held_texts() if fit.fullmatch(text) and len(text.split()) >= MIN_WORDS]


def single_sentences(pool: int) -> Iterator[Text]:
    for speaker in VOICE_SPEAKERS:
        yield from (Text(speaker, (number,), number) for number in range(pool))


def long_texts(count: int, pool: int) -> Iterator[Text]:
    """Texts of as many lengths alike, each by another speaker than the one before."""
    chosen = random.Random(0)
    for seed in range(count):
        length = 1 + seed // len(VOICE_SPEAKERS) % MOST_SENTENCES
        yield Text(VOICE_SPEAKERS[seed % len(VOICE_SPEAKERS)], tuple(chosen.sample(range(pool), length)), seed)


def recognise(text: Text, heard: Heard) -> Spoken:
    found, words = words_heard(text.request.text, _ears()(heard.samples))
    return Spoken(text, heard.finish_reason, len(heard.samples) / SAMPLE_RATE, words, found)


def by_sentence(alone: Sequence[Spoken]) -> Alone:
    return {(one.text.speaker, number): one for one in alone for number in one.text.sentences}


def figures_of(spoken: Sequence[Spoken], alone: Alone) -> dict[str, Any]:
    """All texts, and those of like lengths."""
    rows = []
    for first in range(1, MOST_SENTENCES, BAND):
        band = range(first, first + BAND)
        if like := [one for one in spoken if len(one.text.sentences) in band]:
            rows.append({"sentences_a_text": f"{band[0]} to {band[-1]}", **shares(like, alone)})
    reasons = Counter(one.finish_reason for one in spoken)
    return {"utterances": len(spoken), "finish_reasons": dict(reasons), **shares(spoken, alone), "rows": rows}


def shares(spoken: Sequence[Spoken], alone: Alone) -> dict[str, Any]:
    """Shares of the words that were heard, and seconds of speech: of texts, and of the same sentences one by one."""
    single = [alone[one.text.speaker, number] for one in spoken for number in one.text.sentences]
    words = sum(one.words for one in spoken)
    return {
        "texts": len(spoken),
        "sentences": len(single),
        "words": words,
        "words_heard": round(sum(one.words_heard for one in spoken) / words, 4),
        "words_heard_alone": round(sum(one.words_heard for one in single) / words, 4),
        "seconds": round(sum(one.seconds for one in spoken), 1),
        "seconds_alone": round(sum(one.seconds for one in single), 1),
    }


@cache
def _ears() -> Ears:
    return Ears()


if __name__ == "__main__":
    typer.run(main)
