"""Validation of requests."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from code2wav_step.config import StepConfig

STATE_DTYPE = torch.float16


class InvalidInputError(ValueError):
    """A request does not fit the model; the message names the input, the given and the expected."""


class Request(NamedTuple):
    """codes int32 [B, T, 16] and history int32 [B, 1] on the host, state fp16 [B, S] on any device."""

    codes: Tensor
    state: Tensor
    history: Tensor


class SharedRequest(NamedTuple):
    """codes as in Request, a talker's states [.., S], and places int32 [B, 3] on the host: the row of each stream's
    state, the row for its next state, and the history."""

    codes: Tensor
    states: Tensor
    places: Tensor


@dataclass(frozen=True)
class RequestReader:
    config: StepConfig

    def read(self, tensors: dict[str, Tensor]) -> Request:
        """Raises InvalidInputError."""
        names, codes = self.config.contract, self._codes(tensors)
        state = _tensor(tensors, names.state, STATE_DTYPE, (len(codes), self.config.state_size))
        history = _tensor(tensors, names.history, torch.int32, (len(codes), 1)).cpu()
        _in_range(names.history, history, self.config.window)
        return Request(codes, state, history)

    def read_shared(self, tensors: dict[str, Tensor], states: Tensor) -> SharedRequest:
        """Raises InvalidInputError."""
        names, codes = self.config.contract, self._codes(tensors)
        places = _tensor(tensors, names.places, torch.int32, (len(codes), 3)).cpu()
        _in_range(f"{names.places}: rows", places[:, :2], len(states) - 1)
        _in_range(f"{names.places}: {names.history}", places[:, 2], self.config.window)
        return SharedRequest(codes, states, places)

    def _codes(self, tensors: dict[str, Tensor]) -> Tensor:
        config, contract = self.config, self.config.contract
        codes = _tensor(tensors, contract.codes, torch.int32, (-1, -1, config.num_quantizers)).cpu()
        rows, frames = codes.shape[:2]
        _within(f"{contract.codes}: frames", frames, frames, contract.max_frames, low=1)
        _within(f"{contract.codes}: rows", rows, rows, contract.max_batch, low=1)
        _in_range(contract.codes, codes, config.codebook_size - 1)
        return codes


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


def _in_range(name: str, tensor: Tensor, high: int) -> None:
    array = tensor.numpy()  # ten times as fast as PyTorch for so few
    _within(name, int(array.min()), int(array.max()), high)


def _within(name: str, smallest: int, largest: int, high: int, low: int = 0) -> None:
    for value in (smallest, largest):
        if not low <= value <= high:
            raise InvalidInputError(f"{name}: {value} given, {low} to {high} expected")
