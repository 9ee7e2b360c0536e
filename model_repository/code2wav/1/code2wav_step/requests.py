"""What a request may hold."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from code2wav_step.config import MAX_BATCH, MAX_FRAMES, StepConfig

CODES, STATE, HISTORY = "codes", "state", "history"
STATE_ROWS, STATES = "state_rows", "states"
STATE_DTYPE = torch.float16


class InvalidInputError(ValueError):
    """A request does not fit the model; the message names the input, what came and what fits."""


class Request(NamedTuple):
    """codes int32 [B, T, 16] and history int32 [B, 1] on the host, state fp16 [B, S] wherever it came."""

    codes: Tensor
    state: Tensor
    history: Tensor


class SharedRequest(NamedTuple):
    """As Request, with the talker's states and rows of them, int32 [B, 2] on the host: where each stream's state is,
    and where the next one goes."""

    codes: Tensor
    history: Tensor
    states: Tensor
    rows: Tensor


@dataclass(frozen=True)
class RequestReader:
    config: StepConfig

    def read(self, tensors: dict[str, Tensor]) -> Request:
        """Raises InvalidInputError."""
        codes, history = self._codes_and_history(tensors)
        state = _tensor(tensors, STATE, STATE_DTYPE, (-1, self.config.state_size))
        _same_rows(STATE, state, codes)
        return Request(codes, state, history)

    def read_shared(self, tensors: dict[str, Tensor], states: Tensor) -> SharedRequest:
        """Raises InvalidInputError."""
        codes, history = self._codes_and_history(tensors)
        rows = _tensor(tensors, STATE_ROWS, torch.int32, (-1, 2)).cpu()
        _same_rows(STATE_ROWS, rows, codes)
        _in_range(STATE_ROWS, *_extremes(rows), len(states) - 1)
        return SharedRequest(codes, history, states, rows)

    def _codes_and_history(self, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        config = self.config
        codes = _tensor(tensors, CODES, torch.int32, (-1, -1, config.num_quantizers))
        history = _tensor(tensors, HISTORY, torch.int32, (-1, 1))
        rows, frames = codes.shape[:2]
        _in_range(f"{CODES}: frames", frames, frames, MAX_FRAMES, low=1)
        _in_range(f"{CODES}: rows", rows, rows, MAX_BATCH, low=1)
        _same_rows(HISTORY, history, codes)
        codes, history = codes.cpu(), history.cpu()
        _in_range(CODES, *_extremes(codes), config.codebook_size - 1)
        _in_range(HISTORY, *_extremes(history), config.window)
        return codes, history


def _same_rows(name: str, tensor: Tensor, codes: Tensor) -> None:
    if len(tensor) != len(codes):
        raise InvalidInputError(f"{name}: {len(tensor)} rows given, {len(codes)} of {CODES}")


def _tensor(tensors: dict[str, Tensor], name: str, dtype: torch.dtype, dims: tuple[int, ...]) -> Tensor:
    expected = f"{_name(dtype)} {list(dims)} expected"
    tensor = tensors.get(name)
    if tensor is None:
        raise InvalidInputError(f"{name}: missing, {expected}")
    same_rank = tensor.ndim == len(dims)
    fits = same_rank and all(dim in (-1, size) for dim, size in zip(dims, tensor.shape, strict=True))
    if not fits or tensor.dtype != dtype:
        raise InvalidInputError(f"{name}: {_name(tensor.dtype)} {list(tensor.shape)} given, {expected}")
    return tensor


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _extremes(tensor: Tensor) -> tuple[int, int]:
    array = tensor.numpy()  # a tenth of what PyTorch takes for so few
    return int(array.min()), int(array.max())


def _in_range(name: str, smallest: int, largest: int, high: int, low: int = 0) -> None:
    for value in (smallest, largest):
        if not low <= value <= high:
            raise InvalidInputError(f"{name}: {value} given, {low} to {high} expected")
