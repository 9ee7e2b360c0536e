"""Conversion of the waveform to PCM."""

import numpy as np
import torch
from torch import Tensor

from code2wav_step.config import Contract


def to_int16(waveform: Tensor, contract: Contract) -> Tensor:
    """fp32 [B, samples] -> int16 [B, samples]. A row that overflowed begins with `contract.no_sample` and a 0."""
    pcm = (waveform.clamp(-1, 1) * contract.pcm_scale).round().to(torch.int16)
    overflowed = ~torch.isfinite(waveform.sum(-1))
    pcm[:, 0].masked_fill_(overflowed, contract.no_sample)
    pcm[:, 1].masked_fill_(overflowed, 0)
    return pcm


def mark_denied(pcm: np.ndarray, denied: np.ndarray, contract: Contract) -> None:
    """int16 [B, samples], in place: denied rows, bool [B], begin with `contract.no_sample` twice."""
    pcm[denied, :2] = contract.no_sample
