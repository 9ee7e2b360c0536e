"""Samples and phones of utterances on the device, from which training cuts crops."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scripts.demo_voice.sizes import FRAME
from scripts.demo_voice.synthesis import THIRD, Shard

# Share of crops that begin where an utterance does.
BEGINNINGS = 0.2


class AudioBuffer:
    def __init__(self, capacity: int, crop_frames: int, device: torch.device) -> None:
        """`capacity` in samples, whole frames."""
        self._samples = torch.zeros(capacity, dtype=torch.int16, device=device)
        self._phones = torch.zeros(capacity // THIRD, dtype=torch.uint8, device=device)
        self._within = torch.arange(crop_frames * FRAME, device=device)
        self._thirds = THIRD * torch.arange(3 * crop_frames, device=device) + THIRD // 2
        self._beginnings: list[int] = []
        self.end = 0

    def add(self, shard: Shard) -> bool:
        """Whether there was room for all of it."""
        count = min(len(shard.samples), len(self._samples) - self.end)
        first, thirds = self.end // THIRD, count // THIRD
        self._samples[self.end : self.end + count] = torch.from_numpy(shard.samples[:count])
        self._phones[first : first + thirds] = torch.from_numpy(shard.phones[:thirds])
        starts = self.end + np.cumsum(shard.lengths) - shard.lengths
        self._beginnings += [int(start) for start in starts if start < self.end + count]
        self.end += count
        return count == len(shard.samples)

    def positions(self, count: int, first: int) -> Tensor:
        """Where random crops begin, behind the held-out samples before `first`; int64 [count] on the host."""
        last = self.end - len(self._within)
        at = torch.randint(first, last, (count,))
        begins = torch.tensor(self._beginnings)[torch.randint(len(self._beginnings), (count,))]
        chosen = (torch.rand(count) < BEGINNINGS) & (begins >= first) & (begins < last)
        return torch.where(chosen, begins, at)

    def crops(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Samples [count, 1920 T] and phones int64 [count, T, 3]."""
        samples = self._samples[positions[:, None] + self._within].float() / 32768
        phones = self._phones[(positions[:, None] + self._thirds) // THIRD].long()
        return samples, phones.unflatten(1, (-1, 3))


class Arrivals:
    """Shards of a folder in the order in which workers wrote them, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, set[Path]()

    def take(self, buffer: AudioBuffer, limit: int) -> bool:
        """Adds at most `limit` new shards; False when the buffer is full."""
        new = sorted(path for path in self._folder.glob("*.npz") if path not in self._seen)
        self._seen.update(new[:limit])
        return all(buffer.add(Shard.read(path)) for path in new[:limit])

    def count(self) -> int:
        return len(list(self._folder.glob("*.npz")))
