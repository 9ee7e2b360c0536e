"""The waveform as the talker's listeners get it."""

import torch
from torch import Tensor

PCM_SCALE = 32767
# The first sample of a row that holds no audio because it overflowed: no sample of one that does is so low.
OVERFLOW = -32768


def to_int16(waveform: Tensor) -> Tensor:
    """fp32 [B, samples] -> int16 [B, samples]."""
    pcm = (waveform.clamp(-1, 1) * PCM_SCALE).round().to(torch.int16)
    pcm[:, 0].masked_fill_(~torch.isfinite(waveform.sum(-1)), OVERFLOW)
    return pcm
