"""The contract of the reference encoders: names, tensors, limits.

Shared by the exporter, the Triton configurations, the talker's client and the tests.
"""

from pathlib import Path

from qwen3_tts_engine.audio import SAMPLE_RATE, SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import MANIFEST, EncoderManifest
from qwen3_tts_engine.voices.reference_audio import HOP, NUM_MELS

SPEAKER_ENCODER, CODEC_ENCODER = "speaker_encoder", "codec_encoder"
# speaker_encoder: log-mel float32 [1, frames of 256 samples, 128] -> x-vector float32 [1, talker hidden]
MEL, X_VECTOR = "mel", "x_vector"
# codec_encoder: audio float32 [1, frames, 1920], zero-padded after num_samples int32 [1, 1] -> int32 [1, frames, 16]
AUDIO, NUM_SAMPLES, CODES = "audio", "num_samples", "codes"

MAX_SECONDS = 120
MAX_FRAMES = MAX_SECONDS * SAMPLE_RATE // SAMPLES_PER_FRAME


def input_shapes(frames: int) -> dict[str, list[int]]:
    """Input shapes of both models for a reference of `frames` frames of 80 ms."""
    mels = frames * SAMPLES_PER_FRAME // HOP
    return {MEL: [1, mels, NUM_MELS], AUDIO: [1, frames, SAMPLES_PER_FRAME], NUM_SAMPLES: [1, 1]}


def read_encoder(folder: Path, digest: str, source: Path) -> EncoderManifest:
    """The manifest in a version folder.

    Raises CheckpointError, naming the file, unless the model was exported from these weights.
    """
    manifest = EncoderManifest.read(folder)
    if manifest.digest != digest:
        raise CheckpointError(f"{folder / MANIFEST}: exported from another checkpoint than {source}: export this one")
    return manifest
