"""Golden cases of the codec, made by the FP32 PyTorch step (qwen3_tts_engine.codec.golden)."""

import numpy as np
import torch
from torch import Tensor

from code2wav_step.pcm import to_int16
from export.forms.python_form import step_config
from export.modules.codec import CodecStep
from export.reference import Reference
from qwen3_tts_engine.audio import NUM_CODEBOOKS
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, split_frames
from qwen3_tts_engine.codec.golden import Golden

SEED = 0
UTTERANCES = 3
# Two chunks of each length.
FRAMES = 2 * sum(CHUNK_FRAMES)


def make_golden(
    step: CodecStep,
    codec_digest: str,
    snr_db: float,
    utterances: int = UTTERANCES,
    frames: int = FRAMES,
    repeats: int = 1,
) -> Golden:
    """Utterances of `frames` random codes, said `repeats` times, from a zero state; `snr_db` is the form's limit."""
    reference = Reference(step)
    shape = (utterances, frames, NUM_CODEBOOKS)
    codes = np.random.default_rng(SEED).integers(0, reference.config.codebook_size, shape, np.int32)
    codes = np.tile(codes, (1, repeats, 1))
    waveform = _waveform(reference, torch.from_numpy(codes)).cpu().numpy()
    samples = to_int16(waveform, step_config(step.config).contract)
    return Golden(codes, samples, snr_db, codec_digest)


def _waveform(reference: Reference, codes: Tensor) -> Tensor:
    codes, state, parts = codes.to(reference.device), reference.cold(len(codes)), []
    for start, stop in split_frames(codes.shape[1]):
        part, state = reference(codes[:, start:stop], state, reference.history(len(codes), start))
        parts.append(part)
    return torch.cat(parts, dim=1)
