"""The waveform as the talker's listeners get it."""

import torch
from torch import Tensor

PCM_SCALE = 32767


def to_int16(waveform: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 [B, samples] -> int16 [B, samples] and int32 [B, 1], 0 where a row overflowed."""
    pcm = (waveform.clamp(-1, 1) * PCM_SCALE).round().to(torch.int16)
    return pcm, torch.isfinite(waveform.sum(-1, keepdim=True)).to(torch.int32)


def to_pcm(waveform: Tensor) -> tuple[Tensor, Tensor]:
    """As to_int16, on the host."""
    pcm, finite = to_int16(waveform)
    return pcm.cpu(), finite.cpu()
