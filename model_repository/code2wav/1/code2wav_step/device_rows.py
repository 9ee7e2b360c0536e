"""Rows of states in the memory of a PyTorch device."""

import numpy as np
import torch
from torch import Tensor

from code2wav_step.config import Contract
from code2wav_step.rows import Places, Rows


class DeviceRows(Rows[Tensor]):
    def __init__(self, state_size: int, dtype: torch.dtype, device: torch.device, contract: Contract) -> None:
        self._dtype, self._device = dtype, device
        super().__init__(state_size, contract)

    def gather(self, places: Places) -> Tensor:
        return torch.stack([self._row(row) for row in places.before.tolist()])

    def _new_block(self, count: int) -> tuple[Tensor, np.ndarray]:
        block = torch.zeros(count, self._state_size, dtype=self._dtype, device=self._device)
        return block, row_addresses(block, np.arange(count))


def row_addresses(states: Tensor, rows: np.ndarray) -> np.ndarray:
    """Addresses of `rows` of states [.., S] in memory; int64, in the shape of `rows`."""
    addresses: np.ndarray = states.data_ptr() + rows.astype(np.int64) * (states.stride(0) * states.element_size())
    return addresses
