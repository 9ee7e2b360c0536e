"""Compares speech for held-out sentences with the teacher's."""

import sys
import wave
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from qwen3_tts_engine.checkpoint.alignment import TextLayout
from scripts.demo_voice import flite, snapshots
from scripts.demo_voice.codec.training import SNAPSHOT, CodecModel
from scripts.demo_voice.flite import FliteVoice
from scripts.demo_voice.recognition import Ears, cepstra, nearest, word_errors
from scripts.demo_voice.sizes import RATE, VOICE_SPEAKERS, Sizes
from scripts.demo_voice.speaking import PCM_SCALE, Speaker
from scripts.demo_voice.synthesis import GAINS, prepare
from scripts.demo_voice.texts import held_texts

NUM_FILES = 12
# A part of a duration by which it may differ, and from which speech counts as running away.
TOLERANCE, RUNAWAY = 0.2, 1.6
Report = dict[str, float]
Sounds = Sequence[np.ndarray]


def evaluate(
    checkpoint: Path | None, count: int, layout: TextLayout, output: Path | None, folder: Path | None, sizes: Sizes
) -> Iterator[tuple[str, Report]]:
    """Reports of the teacher, of copies by the codec in `folder`, and of the checkpoint, for each voice."""
    texts, ears = held_texts()[:count], Ears()
    speaker = Speaker(checkpoint, layout) if checkpoint else None
    for voice, name in enumerate(flite.VOICES):
        teacher = teach(texts, voice)
        candidates = [cepstra(sound) for sound in teacher]
        sounds = {"teacher": teacher}
        if folder:
            sounds["copy"] = copies(folder, sizes, teacher)
        if speaker:
            sounds["talker"] = say(speaker, texts, VOICE_SPEAKERS[voice])
        for kind, found in sounds.items():
            if output:
                write_files(output, f"{name}_{kind}", found[:NUM_FILES])
            yield f"{name} {kind}", report(texts, found, teacher, candidates, ears)


def teach(texts: Sequence[str], voice: int) -> list[np.ndarray]:
    """The teacher's samples, as the models learn from them, of any length. Raises ValueError for silence."""
    speak = FliteVoice(flite.VOICES[voice])
    utterances = [prepare(speak(text), GAINS[voice], sys.maxsize) for text in texts]
    if None in utterances:
        raise ValueError(f"the teacher does not speak {texts[utterances.index(None)]!r}")
    return [utterance.samples for utterance in utterances if utterance is not None]


def say(speaker: Speaker, texts: Sequence[str], name: str) -> list[np.ndarray]:
    requests = [{"text": text, "speaker": name, "language": "english", "seed": i} for i, text in enumerate(texts)]
    return [speaker.decode(codes) for codes in speaker.codes(requests)]


@torch.no_grad()
def copies(folder: Path, sizes: Sizes, sounds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the codec makes of sounds."""
    state = snapshots.load(folder / SNAPSHOT)
    model = CodecModel(sizes).eval()
    model.load_state_dict(state["model"] | state.get("averages", {}).get("model", {}))
    found = []
    for sound in sounds:
        z = model.encoder(torch.from_numpy(sound).float()[None] / 32768)
        copied = model.decoder(model.decoder.quantizer.encode(z[0])[None])[0]
        found.append((copied.clamp(-1, 1) * PCM_SCALE).short().numpy())
    return found


def report(
    texts: Sequence[str],
    found: Sounds,
    teacher: Sounds,
    candidates: list[np.ndarray],
    ears: Callable[[np.ndarray], str],
) -> Report:
    """`retrieval` among `candidates`, cepstra of the texts in order, if there are any."""
    errors, said = np.sum([word_errors(text, ears(sound)) for text, sound in zip(texts, found, strict=True)], axis=0)
    lengths = np.array([len(sound) / len(own) for sound, own in zip(found, teacher, strict=True)])
    figures = {
        "wer": errors / said,
        "duration": np.median(lengths),
        "durations_within_20_percent": np.mean(np.abs(lengths - 1) <= TOLERANCE),
        "runaways": np.sum(lengths > RUNAWAY),
    }
    if candidates:
        figures["retrieval"] = np.mean([nearest(cepstra(sound), candidates) == i for i, sound in enumerate(found)])
    return {name: round(float(value), 3) for name, value in figures.items()}


def write_files(folder: Path, name: str, sounds: Sequence[np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, sound in enumerate(sounds):
        with wave.open(str(folder / f"{name}_{i:02}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(sound.tobytes())
