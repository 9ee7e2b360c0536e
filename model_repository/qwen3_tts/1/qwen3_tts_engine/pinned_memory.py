"""From the host to the device without holding up the host."""

import numpy as np
import torch
from torch import Tensor


def to_pinned(array: np.ndarray) -> Tensor:
    """In page-locked memory, from which a copy to the device does not hold up the host."""
    return torch.from_numpy(array).pin_memory()


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """On the device once the current stream gets there; on the CPU the array itself."""
    if device.type == "cpu":
        return torch.from_numpy(array)
    return to_pinned(array).to(device, non_blocking=True)
