"""Clones speak text that comes in pieces, and long text, with the codes of whole texts."""

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
from tests.oracle.test_streamed_text import BRIEF, LONG, SENTENCES, WAIT, Studio, shortest, studio

TEXT = "Hello there, this is a test of speech that is made while its text still comes."
# The text fills up the rows of few reference frames at once, of many only at its end.
REFERENCES = [Clone(TEXT), Clone(TEXT, frames=4, said="Good morning."), Clone(TEXT, frames=150, said="Good morning.")]


@pytest.fixture(scope="module")
def base(checkpoint_of: CheckpointOf) -> Path:
    return checkpoint_of("base")


@pytest.fixture(scope="module")
def whole_texts(base: Path) -> Iterator[Studio]:
    with studio(base, text_layout="streaming", part_text_tokens=0, **BRIEF) as opened:
        yield opened


@pytest.fixture(scope="module")
def parts(base: Path) -> Iterator[Studio]:
    with studio(base, text_layout="streaming", part_text_tokens=shortest(base), **BRIEF) as opened:
        yield opened


def asked(voice: Voice, text: str, **fields: Any) -> SynthesisRequest:
    return SynthesisRequest.of({"text": text, "voice": "any", "seed": 5, **fields}).in_voice(voice)


def whole(live: Studio, request: SynthesisRequest) -> np.ndarray:
    key, listener = live.key(), Listener()
    live.submit(request, listener, key)
    assert listener.ended.wait(WAIT)
    assert listener.error is None
    return live.recorder.of(key)


@pytest.mark.parametrize("reference", REFERENCES, ids=["x-vector", "short", "long"])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_text_in_pieces(whole_texts: Studio, reference: Clone, size: int) -> None:
    live = whole_texts
    voice = voice_of(reference, live.checkpoint.config.talker_config.hidden_size)
    expected = whole(live, asked(voice, TEXT, max_frames=60))
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    key, listener = live.key(), Listener()
    first = asked(voice, pieces[0], max_frames=60)
    begin_sequence(live.sequences, 7, first, listener, key, last=len(pieces) == 1)
    for number, piece in enumerate(pieces[1:], 2):
        live.sequences.append(7, piece, last=number == len(pieces))
    assert listener.ended.wait(WAIT)
    assert listener.error is None
    np.testing.assert_array_equal(live.recorder.of(key), expected)
    live.engine.scheduler.check_integrity()


@pytest.mark.parametrize("reference", REFERENCES[:2], ids=["x-vector", "in-context"])
def test_each_part_of_a_long_text_is_in_the_voice(parts: Studio, whole_texts: Studio, reference: Clone) -> None:
    voice = voice_of(reference, parts.checkpoint.config.talker_config.hidden_size)
    together = whole(parts, asked(voice, LONG))
    alone = [whole(whole_texts, asked(voice, text, seed=5 + part)) for part, text in enumerate(SENTENCES)]
    np.testing.assert_array_equal(together, np.concatenate(alone))
