"""Synthesis, the buffer of samples, flite, and what recognises sounds."""

import ctypes.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.demo_voice.audio_buffer import AudioBuffer
from scripts.demo_voice.flite import FOLDER, PHONES, VOICES, FliteVoice, Voice
from scripts.demo_voice.recognition import cepstra, distance, nearest, word_errors
from scripts.demo_voice.sizes import FRAME, RATE
from scripts.demo_voice.synthesis import KEPT_BEFORE, Shard, prepare, speak


def test_trims_silence_and_keeps_phones_in_place(voices: list[Voice]) -> None:
    utterance = prepare(voices[0]("abcd efgh"), 1.0)
    assert utterance is not None
    assert len(utterance.samples) % FRAME == 0
    assert len(utterance.phones) == 3 * len(utterance.samples) // FRAME
    first = np.flatnonzero(np.abs(utterance.samples) > 250)[0]
    assert abs(int(first) - KEPT_BEFORE) < RATE // 1000
    assert utterance.phones[0] == 0
    assert utterance.phones[2] == 1 + ord("a") % (len(PHONES) - 1)


def test_silence_is_no_utterance(voices: list[Voice]) -> None:
    assert prepare(voices[0](""), 1.0) is None


def test_shards_keep_utterances(tmp_path: Path, voices: list[Voice]) -> None:
    texts = ["one two three", "", "four five"]
    [shard] = speak(texts, range(3), voices, lambda: True)
    shard.write(tmp_path / "shard.npz")
    read = Shard.read(tmp_path / "shard.npz")
    assert read.texts.tolist() == [0, 2]
    assert read.lengths.sum() == len(read.samples) == FRAME // 3 * len(read.phones)


def test_crops_have_their_phones(voices: list[Voice]) -> None:
    [shard] = speak(["some words to crop"], [0], voices, lambda: True)
    buffer = AudioBuffer(100 * FRAME, 2, torch.device("cpu"))
    assert buffer.add(shard)
    samples, phones = buffer.crops(torch.tensor([0, 3 * FRAME]))
    assert phones[1].flatten().tolist() == shard.phones[9:15].tolist()
    torch.testing.assert_close(samples[1] * 32768, torch.from_numpy(shard.samples[3 * FRAME : 5 * FRAME]).float())


def test_a_full_buffer_says_so(voices: list[Voice]) -> None:
    [shard] = speak(["some words to crop"], [0], voices, lambda: True)
    assert not AudioBuffer(4 * FRAME, 2, torch.device("cpu")).add(shard)


def test_flite_speaks_with_phones() -> None:
    if FOLDER not in os.environ and ctypes.util.find_library("flite") is None:
        pytest.skip(f"flite is not installed, and {FOLDER} names no folder")
    spoken = FliteVoice(VOICES[0])("Hello.")
    assert [PHONES[phone] for phone in spoken.phones] == ["pau", "hh", "ax", "l", "ow", "pau"]
    assert (np.diff(spoken.ends) > 0).all()


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("Good morning.", "good morning", 0),
        ("one two three", "one three", 1),
        ("one", "two three", 2),
        ("It's sixty-two", "it's sixty two", 0),
    ],
)
def test_counts_word_errors(said: str, heard: str, errors: int) -> None:
    assert word_errors(said, heard)[0] == errors


def test_finds_the_nearest_sound(voices: list[Voice]) -> None:
    sounds = [cepstra(voices[0](text).samples) for text in ("aeiou", "bcdfg", "xyz")]
    assert distance(sounds[0], sounds[0]) < 1e-3
    slower = np.repeat(sounds[1], 2, axis=0)
    assert nearest(slower, sounds) == 1
