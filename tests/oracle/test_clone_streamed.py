"""Streamed and long text in cloned voices gives the same codes as whole texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.voice import Voice
from tests.conftest import CheckpointOf
from tests.fakes.scripted import Listener
from tests.oracle.speaking import begin_sequence
from tests.oracle.test_clone_talker import Clone, voice_of
from tests.oracle.test_streamed_text import BRIEF, LONG, SENTENCES, WAIT, EngineHarness, running_engine, shortest

TEXT = "Hello there, this is a test of speech that is made while its text still comes."
# The first pieces of text cover a short reference; a long one takes all of the text.
REFERENCES = [Clone(TEXT), Clone(TEXT, frames=4, said="Good morning."), Clone(TEXT, frames=150, said="Good morning.")]


@pytest.fixture(scope="module")
def base(checkpoint_of: CheckpointOf) -> Path:
    return checkpoint_of("base")


@pytest.fixture(scope="module")
def whole_texts(base: Path) -> Iterator[EngineHarness]:
    with running_engine(base, text_layout="streaming", part_text_tokens=0, **BRIEF) as harness:
        yield harness


@pytest.fixture(scope="module")
def parts(base: Path) -> Iterator[EngineHarness]:
    with running_engine(base, text_layout="streaming", part_text_tokens=shortest(base), **BRIEF) as harness:
        yield harness


def voice_request(voice: Voice, text: str, **fields: Any) -> SynthesisRequest:
    return SynthesisRequest.of({"text": text, "voice": "any", "seed": 5, **fields}).in_voice(voice)


def synthesise(harness: EngineHarness, request: SynthesisRequest) -> np.ndarray:
    key, listener = harness.key(), Listener()
    harness.submit(request, listener, key)
    assert listener.ended.wait(WAIT)
    assert listener.error is None
    return harness.recorder.of(key)


@pytest.mark.parametrize("reference", REFERENCES, ids=["x-vector", "short", "long"])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_text_in_pieces_gives_the_codes_of_the_whole_text(
    whole_texts: EngineHarness, reference: Clone, size: int
) -> None:
    harness = whole_texts
    voice = voice_of(reference, harness.checkpoint.config.talker_config.hidden_size)
    expected = synthesise(harness, voice_request(voice, TEXT, max_frames=60))
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    key, listener = harness.key(), Listener()
    first = voice_request(voice, pieces[0], max_frames=60)
    begin_sequence(harness.sequences, 7, first, listener, key, last=len(pieces) == 1)
    for number, piece in enumerate(pieces[1:], 2):
        harness.sequences.append(7, piece, last=number == len(pieces))
    assert listener.ended.wait(WAIT)
    assert listener.error is None
    np.testing.assert_array_equal(harness.recorder.of(key), expected)
    harness.engine.scheduler.check_integrity()


@pytest.mark.parametrize("reference", REFERENCES[:2], ids=["x-vector", "in-context"])
def test_long_clone_equals_its_parts_synthesised_alone(
    parts: EngineHarness, whole_texts: EngineHarness, reference: Clone
) -> None:
    voice = voice_of(reference, parts.checkpoint.config.talker_config.hidden_size)
    together = synthesise(parts, voice_request(voice, LONG))
    alone = [synthesise(whole_texts, voice_request(voice, text, seed=5 + part)) for part, text in enumerate(SENTENCES)]
    np.testing.assert_array_equal(together, np.concatenate(alone))
