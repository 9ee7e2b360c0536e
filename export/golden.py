"""Golden cases of the codec, made by the FP32 PyTorch step (qwen3_tts_engine.codec.golden)."""

import numpy as np
import torch
from torch import Tensor

from export.modules.codec import CodecStep
from export.reference import Reference
from qwen3_tts_engine.audio import NUM_CODEBOOKS
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, split_frames
from qwen3_tts_engine.codec.golden import Golden
from qwen3_tts_engine.codec.travelling_states import to_pcm

SEED = 0
UTTERANCES = 3
# Two chunks of each length.
FRAMES = 2 * sum(CHUNK_FRAMES)


def make_golden(
    step: CodecStep, codec_digest: str, snr_db: float, utterances: int = UTTERANCES, frames: int = FRAMES
) -> Golden:
    """Random codes from a zero state, with the SNR limit of the codec's form."""
    reference = Reference(step)
    shape = (utterances, frames, NUM_CODEBOOKS)
    codes = np.random.default_rng(SEED).integers(0, reference.config.codebook_size, shape, np.int32)
    samples = to_pcm(_waveform(reference, torch.from_numpy(codes)))
    return Golden(codes, samples, snr_db, codec_digest)


def _waveform(reference: Reference, codes: Tensor) -> Tensor:
    codes, state, parts = codes.to(reference.device), reference.cold(len(codes)), []
    for start, stop in split_frames(codes.shape[1]):
        part, state = reference(codes[:, start:stop], state, reference.history(len(codes), start))
        parts.append(part)
    return torch.cat(parts, dim=1)
