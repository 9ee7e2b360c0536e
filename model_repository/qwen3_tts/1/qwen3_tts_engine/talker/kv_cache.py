"""Keys and values of past positions: paged for the talker, dense for the code predictor."""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.configs import TransformerConfig


class PagedCache:
    """The talker's cache: pages of positions and a page table per slot.

    `data` is [layers, keys and values, pages · page_size, kv heads, D], `page_table` int64 [slots, pages of a slot].
    """

    def __init__(
        self, config: TransformerConfig, num_pages: int, page_size: int, page_table: Tensor, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.page_size = page_size
        self.page_table = page_table
        self.cos, self.sin = rope_table(config, page_table.shape[1] * page_size, dtype, page_table.device)
        shape = (config.num_hidden_layers, 2, num_pages * page_size, config.num_key_value_heads, config.head_dim)
        # Zeros, since uninitialised positions are masked, but a NaN times a weight of 0 is still NaN.
        self.data = _zeros(shape, dtype, page_table.device)

    def index(self, slots: Tensor | int, positions: Tensor) -> Tensor:
        """Where `data` has positions of slots, int64 in the shape to which both broadcast."""
        pages = self.page_table[slots, positions // self.page_size]
        return pages * self.page_size + positions % self.page_size


class FrameCache:
    """The code predictor's cache: the positions of one frame, overwritten by the next.

    `data` is [layers, keys and values, rows, positions, kv heads, D].
    """

    def __init__(self, config: TransformerConfig, rows: int, positions: int, dtype: torch.dtype, device: torch.device):
        self.config = config
        self.cos, self.sin = rope_table(config, positions, dtype, device)
        shape = (config.num_hidden_layers, 2, rows, positions, config.num_key_value_heads, config.head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU without memory of their own until they are written or read, which torch.zeros does at once."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def rope_table(
    config: TransformerConfig, positions: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin, each [positions, 1, head_dim / 2]: computed in float32, then rounded.

    See docs/model.md, Decoder stack.
    """
    frequency = 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequency).unsqueeze(1)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
