"""The states of streams, in rows. Callers name rows by number and open those that are theirs with a key."""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from code2wav_step.config import Contract

States = TypeVar("States", bound=Any)

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


class Rows(Generic[States]):
    """Owners and addresses of rows; where states [B, S] lie is up to `HostRows` and `DeviceRows`. Not thread-safe."""

    def __init__(self, state_size: int, contract: Contract) -> None:
        self._state_size, self._num_rows = state_size, contract.num_rows
        self._owners = np.full(self._num_rows, FREE)
        self._owners[self._num_rows - contract.public_rows :] = PUBLIC
        self._owners[ZERO_ROW] = NOBODY
        self._blocks: dict[int, States] = {}
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

    def gather(self, places: Places) -> States:
        """The states to read."""
        raise NotImplementedError

    def scatter(self, places: Places, states: States) -> None:
        """Write the next states."""
        for row, state in zip(places.after.tolist(), states, strict=True):
            self._row(row)[:] = state

    def _row(self, row: int) -> States:
        state: States = self._blocks[row // BLOCK][row % BLOCK]
        return state

    def _new_block(self, count: int) -> tuple[States, np.ndarray]:
        """Zeros [count, S], and the address of each row, int64 [count]."""
        raise NotImplementedError

    def _allocate(self, rows: np.ndarray) -> None:
        for number in set((rows // BLOCK).tolist()) - self._blocks.keys():
            self._add(number * BLOCK, BLOCK)

    def _add(self, first: int, count: int) -> None:
        self._blocks[first // BLOCK], self._addresses[first : first + count] = self._new_block(count)


class HostRows(Rows[np.ndarray]):
    """States in FP32, in this process's memory."""

    def gather(self, places: Places) -> np.ndarray:
        return np.stack([self._row(row) for row in places.before.tolist()])

    def _new_block(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        block = np.zeros((count, self._state_size), np.float32)
        return block, block.ctypes.data + np.arange(count) * block.strides[0]
