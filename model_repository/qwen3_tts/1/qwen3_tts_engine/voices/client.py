"""Calls of the encoder models."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

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
        count = torch.tensor([[len(samples)]], dtype=torch.int32)
        inputs = {encoders.AUDIO: torch.from_numpy(frames(samples))[None], encoders.NUM_SAMPLES: count}
        codes = self._call(encoders.CODEC_ENCODER, inputs, encoders.CODES)
        return Voice(x_vector.result(), codes[0].numpy().copy())

    def _x_vector(self, samples: np.ndarray) -> np.ndarray:
        """float32 [talker hidden]"""
        mel = torch.from_numpy(log_mel(samples))[None]
        vector = self._call(self._speaker_encoder, {encoders.MEL: mel}, encoders.X_VECTOR)
        x_vector: np.ndarray = vector[0].numpy().copy()
        if not np.isfinite(x_vector).all():
            raise RequestError(f"{self._speaker_encoder}: returned a vector that is not finite")
        return x_vector

    def _call(self, model: str, inputs: dict[str, Tensor], output: str) -> Tensor:
        """The output, copied to the CPU."""
        [tensor] = self._call_model(ModelCall(model, inputs, [output]))
        return tensor.cpu()
