"""Detects where speech becomes audible in a PCM stream."""

import numpy as np
from numpy.typing import NDArray

THRESHOLD_DBFS = -45.0


class AudibleOnset:
    """Finds the first of two consecutive 20 ms windows (hop 10 ms) of at least -45 dBFS RMS, chunk by chunk.

    `sample` is the index of that window's first sample, None until found.
    """

    def __init__(self, sample_rate: int) -> None:
        self.sample: int | None = None
        self._hop = sample_rate // 100
        self._energy_floor = 2 * self._hop * 10 ** (THRESHOLD_DBFS / 10) * 2**30
        self._first_block = 0  # index of the first block in _rest
        self._rest = np.empty(0, np.int16)

    def feed(self, pcm: NDArray[np.int16]) -> None:
        if self.sample is not None:
            return
        self._rest = np.concatenate([self._rest, pcm])
        blocks = len(self._rest) // self._hop
        energies = np.square(self._rest[: blocks * self._hop].reshape(blocks, self._hop), dtype=np.int64).sum(axis=1)
        # A window is two blocks; two consecutive windows are three.
        loud = energies[:-1] + energies[1:] >= self._energy_floor
        onsets = np.flatnonzero(loud[:-1] & loud[1:])
        if len(onsets):
            self.sample = (self._first_block + int(onsets[0])) * self._hop
        done = max(0, blocks - 2)
        self._first_block += done
        self._rest = self._rest[done * self._hop :]
