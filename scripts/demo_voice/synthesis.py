"""Speaks the training texts in several processes: shards of 24 kHz samples with a phone for every third of a frame."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soxr

from scripts.demo_voice import flite
from scripts.demo_voice.flite import FliteVoice, Spoken, Voice
from scripts.demo_voice.sizes import FRAME, RATE
from scripts.demo_voice.texts import training_texts, voice_of

# Equal loudness of speech, measured over 200 texts.
GAINS = (0.515, 1.0)
THIRD = FRAME // 3
AUDIBLE = 250
KEPT_BEFORE, KEPT_BEHIND = 40 * RATE // 1000, 120 * RATE // 1000
SHORTEST, LONGEST = RATE // 10, 20 * RATE
SHARD_SAMPLES = 120 * RATE


class Utterance(NamedTuple):
    """Whole frames: samples int16 [1920 T] and phones uint8 [3 T]."""

    samples: np.ndarray
    phones: np.ndarray


class Shard(NamedTuple):
    """Utterances joined: their samples, phones, lengths in samples, text numbers and voices."""

    samples: np.ndarray
    phones: np.ndarray
    lengths: np.ndarray
    texts: np.ndarray
    voices: np.ndarray

    @classmethod
    def read(cls, path: Path) -> "Shard":
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in cls._fields})

    @classmethod
    def join(cls, spoken: Sequence[tuple[int, int, Utterance]]) -> "Shard":
        """(text, voice, utterance) of each."""
        texts, voices, utterances = zip(*spoken, strict=True)
        lengths = np.array([len(utterance.samples) for utterance in utterances])
        samples, phones = (np.concatenate(parts) for parts in zip(*utterances, strict=True))
        return cls(samples, phones, lengths, np.array(texts), np.array(voices))

    def write(self, path: Path) -> None:
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, **self._asdict())
        part.rename(path)


def synthesize(folder: Path, workers: int, seconds: float, utterances: int) -> None:
    """Writes shards of the first `utterances` texts; each worker takes every `workers`-th and stops after `seconds`."""
    folder.mkdir(parents=True, exist_ok=True)
    context = get_context("fork")
    arguments = [(folder, number, workers, time.monotonic() + seconds, utterances) for number in range(workers)]
    processes = [context.Process(target=_work, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a synthesis worker failed")


def speak(
    texts: Sequence[str], numbers: Sequence[int], voices: Sequence[Voice], go_on: Callable[[], bool]
) -> Iterator[Shard]:
    """Shards of the texts with these numbers, as long as `go_on`."""
    spoken: list[tuple[int, int, Utterance]] = []
    for number in numbers:
        if not go_on():
            break
        voice = voice_of(texts[number], len(voices))
        utterance = prepare(voices[voice](texts[number]), GAINS[voice])
        if utterance is not None:
            spoken.append((number, voice, utterance))
        if sum(len(utterance.samples) for _, _, utterance in spoken) > SHARD_SAMPLES:
            yield Shard.join(spoken)
            spoken = []
    if spoken:
        yield Shard.join(spoken)


def prepare(spoken: Spoken, gain: float, longest: int = LONGEST) -> Utterance | None:
    """Trimmed to 40 ms before and 120 ms behind what is audible; None if too short or longer than `longest` samples."""
    samples = soxr.resample(spoken.samples.astype(np.float32) * gain, flite.RATE, RATE)
    audible = np.flatnonzero(np.abs(samples) > AUDIBLE)
    if not len(audible):
        return None
    first, last = max(0, audible[0] - KEPT_BEFORE), min(len(samples), audible[-1] + KEPT_BEHIND)
    if not SHORTEST <= last - first <= longest:
        return None
    frames = -(-(last - first) // FRAME)
    whole = np.pad(samples[first:last], (0, frames * FRAME - (last - first)))
    centres = (first + THIRD * (np.arange(3 * frames) + 0.5)) / RATE
    # What follows the last phone is silence.
    phones = np.append(spoken.phones, np.uint8(0))[np.searchsorted(spoken.ends, centres)]
    return Utterance(np.clip(np.round(whole), -32_000, 32_000).astype(np.int16), phones.astype(np.uint8))


def _work(folder: Path, number: int, workers: int, until: float, utterances: int) -> None:
    os.nice(10)
    texts = training_texts()[:utterances]
    voices = [FliteVoice(name) for name in flite.VOICES]
    numbers = range(number, len(texts), workers)
    for index, shard in enumerate(speak(texts, numbers, voices, lambda: time.monotonic() < until)):
        shard.write(folder / f"{index:04}_{number:02}.npz")
