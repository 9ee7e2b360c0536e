"""Rows of all utterances on the device, and packs of several utterances as long as a training row."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scripts.demo_voice.encoding import Codes
from scripts.demo_voice.sizes import ACTIVE
from scripts.demo_voice.talker.rows import NONE, RowBuilder

# Share of prompts that name the language.
ENGLISH = 0.6
# Longest packed utterance, prompt included.
LENGTH = 384


class Batch(NamedTuple):
    """Packed rows [batch, length]: text, control, codes of their frames and of those they say, and utterance."""

    text: Tensor
    control: Tensor
    codes: Tensor
    is_frame: Tensor
    said: Tensor
    says: Tensor
    utterance: Tensor


class PackedRows:
    """Both layouts of every utterance; a row of index -1 pads."""

    def __init__(self, codes: Codes, ids: Sequence[list[int]], builder: RowBuilder, device: torch.device) -> None:
        """`ids`: text tokens of each utterance."""
        rng = np.random.default_rng(0)
        ends = np.cumsum(codes.frames.astype(np.int64))
        parts, lengths = [], []
        for i, count in enumerate(codes.frames.astype(int)):
            for streaming in (False, True):
                english = rng.random() < ENGLISH
                rows = builder.rows(ids[i], count, codes.voices[i], english=english, streaming=streaming)
                start = ends[i] - count
                parts.append(rows._replace(frame=_shift(rows.frame, start), says=_shift(rows.says, start)))
                lengths.append(len(rows.text))
        self.lengths = np.array(lengths)
        text, control, frame, says = (np.concatenate([*part, [NONE]]) for part in zip(*parts, strict=True))
        owner = np.append(np.repeat(np.arange(len(lengths)), lengths), NONE)
        self._columns = [torch.from_numpy(column).to(device) for column in (text, control, frame, says, owner)]
        self._columns[0][-1] = 0
        self._codes = torch.from_numpy(codes.codes[:, :ACTIVE]).to(device)

    def packs(self, utterances: np.ndarray, rng: np.random.Generator) -> Tensor:
        """Rows of these utterances, shuffled, int32 [packs, LENGTH] on the host."""
        order = rng.permutation(utterances[self.lengths[utterances] <= LENGTH])
        pack, offset = _next_fit(self.lengths[order])
        packs = np.full((pack[-1] + 1, LENGTH), NONE, np.int32)
        starts = np.cumsum(self.lengths) - self.lengths
        for number, at, utterance in zip(pack, offset, order, strict=True):
            length = self.lengths[utterance]
            packs[number, at : at + length] = np.arange(starts[utterance], starts[utterance] + length)
        return torch.from_numpy(packs)

    def batch(self, rows: Tensor) -> Batch:
        """Rows by index [batch, length]; -1 reads the last, empty one."""
        text, control, frame, says, owner = (column[rows].long() for column in self._columns)
        codes, said = (self._codes[numbers.clamp(min=0)].long() for numbers in (frame, says))
        return Batch(text, control, codes, frame >= 0, said, says, owner)


def _shift(numbers: np.ndarray, start: int) -> np.ndarray:
    return np.where(numbers >= 0, numbers + start, numbers).astype(np.int32)


def _next_fit(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pack of each utterance and its place there; a pack ends before the utterance that exceeds LENGTH."""
    pack, offset = np.zeros(len(lengths), int), np.zeros(len(lengths), int)
    number = filled = 0
    for i, length in enumerate(lengths):
        if filled + length > LENGTH:
            number, filled = number + 1, 0
        pack[i], offset[i] = number, filled
        filled += length
    return pack, offset
