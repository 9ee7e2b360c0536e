"""Calls of the encoder models, with a stand-in for Triton."""

import threading
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices import client
from qwen3_tts_engine.voices.client import ModelEncoder
from qwen3_tts_engine.voices.encoders import AUDIO, CODEC_ENCODER, MEL, NUM_SAMPLES, SPEAKER_ENCODER
from qwen3_tts_engine.voices.reference_audio import frames, log_mel

WAIT = 60
SAMPLES = np.random.default_rng(0).uniform(-0.5, 0.5, 5000).astype(np.float32)


class Models:
    """The x-vector is the mean of the spectrogram; each code is the number of samples."""

    def __init__(self) -> None:
        self.inputs: dict[str, dict[str, np.ndarray]] = {}
        self.primed: list[Voice] = []
        self.codec_called = threading.Event()
        self.encoder = ModelEncoder(EngineConfig(checkpoint="any"), self.primed.append, self.call)

    def call(self, call: ModelCall) -> list[np.ndarray]:
        self.inputs[call.model] = call.inputs
        if call.model == SPEAKER_ENCODER:
            return [call.inputs[MEL].mean(1)]
        self.codec_called.set()
        count = call.inputs[AUDIO].shape[1]
        return [np.full((1, count, 16), call.inputs[NUM_SAMPLES])]


def test_a_voice_in_context_has_vector_and_codes() -> None:
    models = Models()
    voice = models.encoder.encode(SAMPLES, in_context=True)
    np.testing.assert_allclose(voice.x_vector, log_mel(SAMPLES).mean(0), rtol=1e-5)
    assert voice.codes is not None
    assert (voice.codes == len(SAMPLES)).all()
    assert voice.codes.shape == (3, 16)
    np.testing.assert_array_equal(models.inputs[CODEC_ENCODER][AUDIO][0], frames(SAMPLES))


def test_a_vector_alone_needs_no_codec() -> None:
    models = Models()
    voice = models.encoder.encode(SAMPLES, in_context=False)
    assert voice.codes is None
    assert models.inputs.keys() == {SPEAKER_ENCODER}


def test_the_codecs_client_primes_a_voice_and_the_encoders_are_not_called() -> None:
    models, voice = Models(), Voice(np.zeros(128, np.float32))
    models.encoder.prime(voice)
    assert models.primed == [voice]
    assert not models.inputs


def test_the_codec_does_not_wait_for_the_spectrogram(monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models()

    def late(samples: np.ndarray) -> np.ndarray:
        assert models.codec_called.wait(WAIT)
        return log_mel(samples)

    monkeypatch.setattr(client, "log_mel", late)
    assert models.encoder.encode(SAMPLES, in_context=True).codes is not None


@pytest.mark.parametrize("in_context", [False, True])
def test_a_vector_that_is_not_finite_is_an_error(in_context: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(samples: np.ndarray) -> Any:
        return np.full_like(log_mel(samples), np.nan)

    monkeypatch.setattr(client, "log_mel", broken)
    with pytest.raises(RequestError, match="not finite"):
        Models().encoder.encode(SAMPLES, in_context)
