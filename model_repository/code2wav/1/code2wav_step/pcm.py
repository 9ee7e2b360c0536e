"""The waveform as the talker's listeners get it."""

import torch
from torch import Tensor

PCM_SCALE = 32767


def to_pcm(waveform: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 [B, samples] -> int16 [B, samples] and int32 [B, 1], 0 where a row overflowed.

    From a GPU they are on the host once the current stream gets there.
    """
    pcm = (waveform.clamp(-1, 1) * PCM_SCALE).round().to(torch.int16)
    finite = torch.isfinite(waveform.sum(-1, keepdim=True)).to(torch.int32)
    return _to_host(pcm), _to_host(finite)


def _to_host(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
