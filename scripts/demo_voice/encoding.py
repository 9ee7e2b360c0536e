"""Codes of all utterances, by the frozen encoder: all that the talker learns from, in one small file."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from scripts.demo_voice import snapshots
from scripts.demo_voice.codec.training import FROZEN, CodecModel
from scripts.demo_voice.sizes import FRAME, Sizes
from scripts.demo_voice.stepping import best_device, half_precision
from scripts.demo_voice.synthesis import Shard

CODES_FILE = "codes.npz"
# Samples of a batch.
BATCH = 300 * 24_000
READERS = 6


class Codes(NamedTuple):
    """Utterances ordered by text: codes uint8 [frames, active], numbers of frames, text numbers and voices."""

    codes: np.ndarray
    frames: np.ndarray
    texts: np.ndarray
    voices: np.ndarray

    @classmethod
    def read(cls, path: Path) -> "Codes":
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in cls._fields})

    def write(self, path: Path) -> None:
        np.savez_compressed(path, **self._asdict())


def encode(folder: Path, sizes: Sizes) -> Codes:
    """Encodes every shard in `folder`, and writes the codes beside them."""
    device = best_device()
    model = CodecModel(sizes)
    model.load_state_dict(snapshots.load(folder / FROZEN)["model"])
    model.to(device).eval()
    paths = sorted((folder / "shards").glob("*.npz"))
    found: list[tuple[int, int, np.ndarray]] = []
    with ThreadPoolExecutor(READERS) as readers:
        for shard in readers.map(Shard.read, paths):
            codes = encode_shard(model, shard, device)
            found += zip(map(int, shard.texts), map(int, shard.voices), codes, strict=True)
    encoded = _ordered(found)
    encoded.write(folder / CODES_FILE)
    return encoded


@torch.no_grad()
def encode_shard(model: CodecModel, shard: Shard, device: torch.device) -> list[np.ndarray]:
    """Codes uint8 [frames, active] of each utterance."""
    ends = np.cumsum(shard.lengths)
    found: list[np.ndarray] = [np.empty(0)] * len(ends)
    for batch in _batches(shard.lengths):
        audio = np.zeros((len(batch), shard.lengths[batch].max()), np.int16)
        for row, i in enumerate(batch):
            audio[row, : shard.lengths[i]] = shard.samples[ends[i] - shard.lengths[i] : ends[i]]
        with half_precision(device):
            z = model.encoder(torch.from_numpy(audio).to(device).float() / 32768)
        flat = model.decoder.quantizer.encode(z.flatten(0, 1).float())
        codes = flat.unflatten(0, z.shape[:2]).to(torch.uint8).cpu().numpy()
        for row, i in enumerate(batch):
            found[i] = codes[row, : shard.lengths[i] // FRAME]
    return found


def _batches(lengths: np.ndarray) -> Iterator[list[int]]:
    """Utterances of similar length."""
    batch: list[int] = []
    for i in np.argsort(lengths):
        if batch and (len(batch) + 1) * lengths[i] > BATCH:
            yield batch
            batch = []
        batch.append(int(i))
    yield batch


def _ordered(found: list[tuple[int, int, np.ndarray]]) -> Codes:
    found.sort(key=lambda utterance: utterance[0])
    texts, voices, codes = zip(*found, strict=True)
    frames = np.array([len(own) for own in codes], np.uint16)
    return Codes(np.concatenate(codes), frames, np.array(texts, np.int32), np.array(voices, np.uint8))
