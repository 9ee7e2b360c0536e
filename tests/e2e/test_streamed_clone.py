"""Streamed text in a cloned voice through tritonserver."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import SpeechRequest, encode
from qwen3_tts_client.say import streamed
from qwen3_tts_client.stream import Timeouts
from qwen3_tts_client.sync_stream import speak
from tests.conftest import CheckpointOf
from tests.e2e.serving import Caller, eventually
from tests.e2e.test_voices import IN_CONTEXT, X_VECTOR, assert_same, repository, serving
from tests.oracle.test_encoders import recording

__all__ = ["repository"]
TEXT = "Hello there, this is a clone. It speaks two sentences, and its text comes bit by bit."


@pytest.fixture(scope="module")
def caller(repository: Path, checkpoint_of: CheckpointOf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    settings = {"base_frames": "20", "frames_per_text_token": "1", "part_text_tokens": "16"}
    folder = tmp_path_factory.mktemp("server")
    with serving(repository, checkpoint_of("base"), folder, **settings) as server, Caller(server) as caller:
        yield caller


def samples(caller: Caller, requests: Any) -> np.ndarray:
    return np.concatenate([chunk.pcm for _, chunk in speak(caller.stub, requests, Timeouts(120, 60))])


@pytest.mark.parametrize("clone", [IN_CONTEXT, X_VECTOR], ids=["in-context", "x-vector-only"])
def test_streamed_pieces_equal_the_whole_text(caller: Caller, clone: dict[str, Any]) -> None:
    """All pieces arrive before the encoders finish; the text may need fewer rows than the reference has frames."""
    # Not in the voice cache, so the sequence waits for the encoders.
    clone = clone | {"ref_audio": recording(24000, 48_000 + len(clone))}
    request = SpeechRequest("", seed=3, **clone)
    pieces = samples(caller, streamed(request, "qwen3_tts", [TEXT[:3], TEXT[3:40], TEXT[40:]]))
    whole = samples(caller, [encode(SpeechRequest(TEXT, seed=3, **clone))])
    assert_same(pieces, whole)


def test_invalid_voice_ends_the_sequence_with_its_error(caller: Caller) -> None:
    missing = SpeechRequest("", voice="nobody")
    with pytest.raises(SpeechError, match="INVALID_ARG: voice: 'nobody'"):
        samples(caller, streamed(missing, "qwen3_tts", ["Hello ", "there."]))
    silent = SpeechRequest("", **IN_CONTEXT | {"ref_audio": np.zeros(24000, np.float32)})
    with pytest.raises(SpeechError, match="INVALID_ARG: ref_audio"):
        samples(caller, streamed(silent, "qwen3_tts", ["Hello ", "there."]))
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)


def test_long_text_in_a_cloned_voice_produces_audio(caller: Caller) -> None:
    assert len(samples(caller, [encode(SpeechRequest(TEXT * 2, seed=1, **IN_CONTEXT))])) > 0
