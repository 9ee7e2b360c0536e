"""Calls of the encoder models."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.interfaces import CallModel, ModelCall
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices import encoders
from qwen3_tts_engine.voices.reference_audio import frames, log_mel


class ModelEncoder:
    """voices.service.ReferenceEncoder."""

    def __init__(
        self,
        config: EngineConfig,
        prime: Callable[[Voice], None],
        call_model: CallModel,
    ) -> None:
        """`prime` is that of the codec's client."""
        self._speaker_encoder, self._call_model = config.speaker_encoder, call_model
        self.prime = prime
        self._speakers = ThreadPoolExecutor(1, thread_name_prefix="x-vectors")

    def encode(self, samples: np.ndarray, in_context: bool) -> Voice:
        if not in_context:
            return Voice(self._x_vector(samples))
        # Two models on the same recording, at the same time.
        x_vector = self._speakers.submit(self._x_vector, samples)
        count = np.array([[len(samples)]], np.int32)
        inputs = {encoders.AUDIO: frames(samples)[None], encoders.NUM_SAMPLES: count}
        codes = self._call(encoders.CODEC_ENCODER, inputs, encoders.CODES)
        return Voice(x_vector.result(), codes[0])

    def _x_vector(self, samples: np.ndarray) -> np.ndarray:
        """float32 [talker hidden]"""
        mel = log_mel(samples)[None]
        x_vector: np.ndarray = self._call(self._speaker_encoder, {encoders.MEL: mel}, encoders.X_VECTOR)[0]
        if not np.isfinite(x_vector).all():
            raise RequestError(f"{self._speaker_encoder}: returned a vector that is not finite")
        return x_vector

    def _call(self, model: str, inputs: dict[str, np.ndarray], output: str) -> np.ndarray:
        [array] = self._call_model(ModelCall(model, inputs, [output]))
        return array
