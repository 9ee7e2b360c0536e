"""A miniature of the whole chain, with a voice of beeps."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.demo_voice import flite, snapshots
from scripts.demo_voice.audio_buffer import Arrivals, AudioBuffer
from scripts.demo_voice.codec.training import FROZEN, CodecTraining
from scripts.demo_voice.codec.training import SNAPSHOT as CODEC
from scripts.demo_voice.encoding import CODES_FILE, encode
from scripts.demo_voice.flite import PHONES, Spoken, Voice
from scripts.demo_voice.packing import pack
from scripts.demo_voice.sizes import FRAME, Sizes, sizes
from scripts.demo_voice.synthesis import speak
from scripts.demo_voice.talker.training import SNAPSHOT as TALKER
from scripts.demo_voice.talker.training import TalkerTraining, read_rows
from scripts.demo_voice.texts import training_texts

CPU = torch.device("cpu")
LETTER_SECONDS, EDGE_SECONDS = 0.05, 0.1
UTTERANCES, CROP_FRAMES = 12, 6


@dataclass(frozen=True)
class BeepingVoice:
    """Silence, one beep of a phone for each letter, silence."""

    pitch: float

    def __call__(self, text: str) -> Spoken:
        phones = [0, *(1 + ord(letter) % (len(PHONES) - 1) for letter in text), 0]
        seconds = [EDGE_SECONDS, *[LETTER_SECONDS] * len(text), EDGE_SECONDS]
        ends = np.cumsum(seconds)
        times = np.arange(int(ends[-1] * flite.RATE)) / flite.RATE
        now = np.array(phones)[np.searchsorted(ends, times, side="right").clip(max=len(phones) - 1)]
        sound = np.sin(2 * np.pi * self.pitch * (1 + now / 40) * times) * (now > 0)
        return Spoken((8000 * sound).astype(np.int16), np.array(phones, np.uint8), ends.astype(np.float32))


@dataclass(frozen=True)
class Miniature:
    folder: Path
    checkpoint: Path
    sizes: Sizes


@pytest.fixture(scope="session")
def voices() -> list[Voice]:
    return [BeepingVoice(220.0), BeepingVoice(110.0)]


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory, voices: list[Voice]) -> Path:
    """A working folder with shards."""
    folder = tmp_path_factory.mktemp("demo_voice")
    (folder / "shards").mkdir()
    for i, shard in enumerate(speak(training_texts(), range(UTTERANCES), voices, lambda: True)):
        shard.write(folder / "shards" / f"{i}.npz")
    return folder


@pytest.fixture(scope="session")
def codec_training(shards: Path) -> Callable[[], CodecTraining]:
    """Makes a training of the mini codec on the shards."""

    def make() -> CodecTraining:
        torch.manual_seed(0)
        buffer = AudioBuffer(1000 * FRAME, CROP_FRAMES, CPU)
        Arrivals(shards / "shards").take(buffer, 10)
        training = CodecTraining(sizes("mini"), buffer, CPU)
        training.calibrate(buffer.positions(2, 0))
        return training

    return make


@pytest.fixture(scope="session")
def miniature(shards: Path, codec_training: Callable[[], CodecTraining]) -> Miniature:
    """Snapshots, codes and a packed checkpoint after a few steps of each training."""
    chosen, training = sizes("mini"), codec_training()
    for phase in ("unquantized", "quantized", "frozen"):
        training.enter(phase)
        training.set_rates(1.0, 1.0)
        training.take(torch.tensor([0, 5 * FRAME]))
    snapshots.save(training.state(1.0), shards / CODEC)
    snapshots.save({"model": training.model.state_dict()}, shards / FROZEN)
    encode(shards, chosen)
    rows, _, others = read_rows(shards / CODES_FILE, chosen, CPU)
    talker = TalkerTraining(chosen, rows, 64, CPU)
    for _ in range(3):
        talker.set_rate(1.0)
        talker.take(rows.packs(others, np.random.default_rng(0))[:2])
    snapshots.save(talker.state(1.0), shards / TALKER)
    pack(shards, shards / "checkpoint", chosen)
    return Miniature(shards, shards / "checkpoint", chosen)
