"""Conversion of the waveform to PCM."""

import torch
from torch import Tensor

from code2wav_step.config import Contract


def to_int16(waveform: Tensor, contract: Contract) -> Tensor:
    """fp32 [B, samples] -> int16 [B, samples]. The first sample of a row that overflowed is `contract.overflow`."""
    pcm = (waveform.clamp(-1, 1) * contract.pcm_scale).round().to(torch.int16)
    pcm[:, 0].masked_fill_(~torch.isfinite(waveform.sum(-1)), contract.overflow)
    return pcm
