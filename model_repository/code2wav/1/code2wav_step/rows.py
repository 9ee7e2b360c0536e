"""The states of streams, in rows. Callers name rows by number and open those that are theirs with a key."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from code2wav_step.config import Contract

# Rows are allocated in blocks, when the first of them gets an owner or is written.
BLOCK = 16
ZERO_ROW = 0
# Owners of a row that has no key, which is an int32 above 0. Callers without a key give PUBLIC; nobody can give the
# others.
PUBLIC, FREE, NOBODY = 0, -1 << 40, -2 << 40


class Places(NamedTuple):
    """What a call may touch: rows to read and to write, and the history of the first ones, int32 or int64 [B].

    `denied` bool [B] marks entries whose key does not open one of their rows: they read zeros and write nowhere.
    """

    before: np.ndarray
    after: np.ndarray
    history: np.ndarray
    denied: np.ndarray
    writes: bool
    """Whether any entry writes a row: neither claims nor denied entries do."""


class Rows:
    """Not thread-safe."""

    def __init__(self, state_size: int, dtype: torch.dtype, device: torch.device, contract: Contract) -> None:
        self._state_size, self._dtype, self._device = state_size, dtype, device
        self._num_rows = contract.num_rows
        self._owners = np.full(self._num_rows, FREE)
        self._owners[self._num_rows - contract.public_rows :] = PUBLIC
        self._owners[ZERO_ROW] = NOBODY
        self._blocks: dict[int, Tensor] = {}
        self._addresses = np.zeros(self._num_rows + 1, np.int64)
        # The row behind the last one, for writes that belong to none.
        self._nowhere = self._num_rows
        self._add(ZERO_ROW, BLOCK)
        self._add(self._nowhere, 1)

    def open(self, places: np.ndarray) -> Places:
        """Opens places int32 [B, 4] whose rows exist; claims rows without an owner for the keys that write them."""
        # Few operations: a stream's first audio waits for this.
        before, after, history, key = places.T
        owners = self._owners[places[:, :2]]
        is_own = owners == key[:, None]
        is_claim = (before == after) & (history == 0)
        opens = is_own[:, 1] & (is_own[:, 0] | (before == ZERO_ROW))
        if not opens.all():
            is_free = (owners == FREE) & (key > 0)[:, None]
            reads = is_own[:, 0] | (before == ZERO_ROW) | (is_claim & is_free[:, 0])
            opens = reads & (is_own[:, 1] | is_free[:, 1])
            taken = opens & is_free[:, 1]
            self._owners[after[taken]] = key[taken]
            # Only one of two entries that claim a row at once gets it.
            opens &= self._owners[after] == key
        if not self._addresses[after].all():
            self._allocate(after[opens])
        writes = opens & ~is_claim
        # A row without memory was never written.
        reads = writes & (self._addresses[before] != 0)
        if not reads.all():
            before, after = np.where(reads, before, ZERO_ROW), np.where(writes, after, self._nowhere)
        return Places(before, after, history, ~opens, bool(writes.any()))

    def addresses(self, places: Places) -> np.ndarray:
        """Addresses of each entry's state and its next one, int64 [2, B]."""
        addresses: np.ndarray = self._addresses[np.stack([places.before, places.after])]
        return addresses

    def gather(self, places: Places) -> Tensor:
        """The states to read, [B, S]."""
        return torch.stack([self._row(row) for row in places.before.tolist()])

    def scatter(self, places: Places, states: Tensor) -> None:
        for row, state in zip(places.after.tolist(), states, strict=True):
            self._row(row).copy_(state)

    def _row(self, row: int) -> Tensor:
        return self._blocks[row // BLOCK][row % BLOCK]

    def _allocate(self, rows: np.ndarray) -> None:
        for number in set((rows // BLOCK).tolist()) - self._blocks.keys():
            self._add(number * BLOCK, BLOCK)

    def _add(self, first: int, count: int) -> None:
        block = torch.zeros(count, self._state_size, dtype=self._dtype, device=self._device)
        self._blocks[first // BLOCK] = block
        self._addresses[first : first + count] = row_addresses(block, np.arange(count))


def row_addresses(states: Tensor, rows: np.ndarray) -> np.ndarray:
    """Addresses of `rows` of states [.., S] in memory; int64, in the shape of `rows`."""
    addresses: np.ndarray = states.data_ptr() + rows.astype(np.int64) * (states.stride(0) * states.element_size())
    return addresses
