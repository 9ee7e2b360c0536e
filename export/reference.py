"""The PyTorch codec step in FP32 as a reference, and rows of inputs with its outputs."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from export.modules.codec import CodecStep
from qwen3_tts_engine.codec.contract import max_history, split_frames

# Rows decoded at once: all of a large batch would not fit in memory.
SLICE = 8
# Frames decoded before a row: cold, window filling, just full, and long full.
AGES = (0, 1, 5, 40, 71, 80)
# Every MALFORMED-th row has codes out of range.
MALFORMED = 7
OUT_OF_RANGE = (-1, 5000)


class Reference:
    """The step in full FP32 (no TF32), on a GPU if there is one."""

    def __init__(self, step: CodecStep) -> None:
        self.config, self.state_size, self.max_history = step.config, step.state_size, max_history(step.config)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._step = copy.deepcopy(step).to(self.device) if self.device.type == "cuda" else step
        torch.backends.cudnn.allow_tf32 = False

    @torch.inference_mode()
    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        slices = zip(*(tensor.split(SLICE) for tensor in (codes, state, history)), strict=True)
        waveforms, states = zip(*(self._step(*inputs) for inputs in slices), strict=True)
        return torch.cat(waveforms), torch.cat(states)

    def cold(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.state_size, device=self.device)

    def history(self, rows: int, frames: int) -> Tensor:
        """History of streams after `frames` frames."""
        return torch.full((rows, 1), min(frames, self.max_history), dtype=torch.int32, device=self.device)


@dataclass(frozen=True)
class Rows:
    """Inputs, and the reference's outputs for them."""

    codes: Tensor
    state: Tensor
    history: Tensor
    waveform: Tensor
    state_out: Tensor

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.codes, self.state, self.history

    @property
    def outputs(self) -> tuple[Tensor, Tensor]:
        return self.waveform, self.state_out

    def pick(self, rows: Tensor) -> "Rows":
        return Rows(*(tensor[rows] for tensor in (*self.inputs, *self.outputs)))


class RowPool:
    """Rows of all ages, some malformed: for each chunk length as many as its largest batch, and at least SLICE."""

    def __init__(self, reference: Reference, sizes: Mapping[int, int], random: np.random.Generator) -> None:
        """`sizes` are the rows of the largest batch by its frames."""
        self._reference, self._random = reference, random
        state, history = self._streams(max(SLICE, *sizes.values()))
        self._rows = {}
        for frames, size in sizes.items():
            rows = max(SLICE, size)
            self._rows[frames] = self._make(frames, state[:rows], history[:rows])

    def draw(self, frames: int, rows: int, distinct: int) -> np.ndarray:
        """Indices of `rows` rows, `distinct` different ones, in random order; one of several is malformed."""
        order = self._random.permutation(len(self._rows[frames].codes))
        if distinct > 1:
            malformed, good = order[order % MALFORMED == 0], order[order % MALFORMED != 0]
            order = np.concatenate([malformed[:1], good, malformed[1:]])
        repeated = self._random.choice(order[:distinct], rows - distinct)
        return self._random.permutation(np.concatenate([order[:distinct], repeated]))

    def batch(self, frames: int, indices: np.ndarray) -> Rows:
        return self._rows[frames].pick(torch.from_numpy(indices).to(self._reference.device))

    def codes(self, rows: int, frames: int) -> Tensor:
        config = self._reference.config
        shape = (rows, frames, config.num_quantizers)
        codes = self._random.integers(0, config.codebook_size, shape, np.int32)
        return torch.from_numpy(codes).to(self._reference.device)

    def _make(self, frames: int, state: Tensor, history: Tensor) -> Rows:
        codes = self.codes(len(state), frames)
        codes[::MALFORMED, -1, : len(OUT_OF_RANGE)] = torch.tensor(OUT_OF_RANGE, dtype=codes.dtype).to(codes.device)
        inputs = codes, state, history
        return Rows(*inputs, *self._reference(*inputs))

    def _streams(self, size: int) -> tuple[Tensor, Tensor]:
        """State and history of rows whose ages cycle through AGES."""
        streams = min(SLICE, math.ceil(size / len(AGES)))
        states = self._states_by_age(streams)
        picked = [(row % len(AGES), row // len(AGES) % streams) for row in range(size)]
        state = torch.stack([states[age][stream] for age, stream in picked])
        history = torch.cat([self._reference.history(1, AGES[age]) for age, _ in picked])
        return state, history

    def _states_by_age(self, rows: int) -> list[Tensor]:
        """The states of `rows` streams at each of AGES."""
        states = [self._reference.cold(rows)]
        for younger, older in pairwise(AGES):
            state = states[-1]
            for start, stop in split_frames(older - younger):
                history = self._reference.history(rows, younger + start)
                _, state = self._reference(self.codes(rows, stop - start), state, history)
            states.append(state)
        return states
