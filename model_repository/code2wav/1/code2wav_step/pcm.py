"""Conversion of the waveform to PCM."""

import torch
from torch import Tensor

PCM_SCALE = 32767
# First sample of a row that overflowed and has no audio; valid samples are above it.
OVERFLOW = -32768


def to_int16(waveform: Tensor) -> Tensor:
    """fp32 [B, samples] -> int16 [B, samples]."""
    pcm = (waveform.clamp(-1, 1) * PCM_SCALE).round().to(torch.int16)
    pcm[:, 0].masked_fill_(~torch.isfinite(waveform.sum(-1)), OVERFLOW)
    return pcm
