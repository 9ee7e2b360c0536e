"""Asynchronous copies from host to device."""

import numpy as np
import torch
from torch import Tensor


def to_pinned(array: np.ndarray) -> Tensor:
    """A copy in page-locked memory, from which copies to the device do not block the host."""
    return torch.from_numpy(array).pin_memory()


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """An asynchronous copy on the current stream; on the CPU the array itself."""
    if device.type == "cpu":
        return torch.from_numpy(array)
    return to_pinned(array).to(device, non_blocking=True)
