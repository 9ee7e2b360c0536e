"""The voice in which a Base checkpoint speaks while its heads for word times are chosen."""

import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from export.modules.codec_encoder import CodecEncoder
from export.modules.speaker_encoder import SpeakerEncoder
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices import encoders
from qwen3_tts_engine.voices.client import ModelEncoder

# A sentence of the demo voice (scripts/demo_voice), at 24 kHz.
RECORDING = Path(__file__).parent / "reference.wav"
TEXT = "The meeting room is on the second floor, next to the kitchen."


def reference_voice(checkpoint: Checkpoint) -> Voice:
    """The recording in context, encoded by PyTorch."""
    modules = {
        encoders.SPEAKER_ENCODER: SpeakerEncoder.from_checkpoint(checkpoint),
        encoders.CODEC_ENCODER: CodecEncoder.from_checkpoint(checkpoint),
    }

    def call(made: ModelCall) -> list[np.ndarray]:
        with torch.inference_mode():
            return [modules[made.model](*map(torch.from_numpy, made.inputs.values())).numpy()]

    encoder = ModelEncoder(EngineConfig(checkpoint=str(checkpoint.folder)), lambda voice: None, call)
    return replace(encoder.encode(_samples(), in_context=True), text=TEXT)


def _samples() -> np.ndarray:
    """float32 [samples]"""
    with wave.open(str(RECORDING)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return samples.astype(np.float32) / 32768
