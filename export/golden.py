"""Golden cases of the codec, made by the FP32 PyTorch step (qwen3_tts_engine.golden)."""

import numpy as np
import torch

from export.codec import CodecStep
from export.verify import Array, torch_step
from qwen3_tts_engine.code2wav import CODEBOOK_SIZE, MAX_FRAMES, NUM_CODEBOOKS
from qwen3_tts_engine.codec import to_pcm
from qwen3_tts_engine.golden import Golden

SEED = 0
UTTERANCES = 3
# One chunk of each length 1, 2, 4, .., MAX_FRAMES.
FRAMES = 2 * MAX_FRAMES - 1


def make_golden(step: CodecStep, codec_digest: str, snr_db: float) -> Golden:
    """Random codes from a zero state, with the limit that the codec's form promises."""
    codes = np.random.default_rng(SEED).integers(0, CODEBOOK_SIZE, (UTTERANCES, FRAMES, NUM_CODEBOOKS), np.int32)
    samples, _ = to_pcm(torch.from_numpy(_waveform(step, codes)))
    return Golden(codes, samples, snr_db, codec_digest)


def _waveform(step: CodecStep, codes: Array) -> Array:
    run, parts = torch_step(step), []
    state = np.zeros((len(codes), step.state_size), np.float32)
    for start in range(0, codes.shape[1], MAX_FRAMES):
        history = np.full((len(codes), 1), start, np.int32)
        part, state = run(codes[:, start : start + MAX_FRAMES], state, history)
        parts.append(part)
    return np.concatenate(parts, axis=1)
