"""Validation of requests."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
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
    """A talker's states [.., S], and on the host codes int32 [B, T, 16] and places int32 [B, 3]: the row of each
    stream's state, the row for its next state, and the history. No stream's state is where another one's goes."""

    codes: np.ndarray
    states: Tensor
    places: np.ndarray


@dataclass(frozen=True)
class RequestReader:
    config: StepConfig

    def read(self, tensors: dict[str, Tensor]) -> Request:
        """Raises InvalidInputError."""
        names, codes = self.config.contract, self._codes(tensors)
        self._check_codes(codes)
        state = _tensor(tensors, names.state, STATE_DTYPE, (len(codes), self.config.state_size))
        history = _tensor(tensors, names.history, torch.int32, (len(codes), 1)).cpu()
        _in_range(names.history, history.numpy(), self.config.window)
        return Request(torch.from_numpy(codes), state, history)

    def read_shared(self, tensors: dict[str, Tensor], states: Tensor) -> SharedRequest:
        """Raises InvalidInputError."""
        codes = self._codes(tensors)
        places = _tensor(tensors, self.config.contract.places, torch.int32, (len(codes), 3)).cpu().numpy()
        return self.check_shared(SharedRequest(codes, states, places))

    def check_shared(self, request: SharedRequest) -> SharedRequest:
        """The request, whose arrays have the types and shapes of SharedRequest. Raises InvalidInputError."""
        names, places = self.config.contract, request.places
        self._check_codes(request.codes)
        _in_range(f"{names.places}: rows", places[:, :2], len(request.states) - 1)
        _in_range(f"{names.places}: {names.history}", places[:, 2], self.config.window)
        return request

    def _codes(self, tensors: dict[str, Tensor]) -> np.ndarray:
        shape = (-1, -1, self.config.num_quantizers)
        codes: np.ndarray = _tensor(tensors, self.config.contract.codes, torch.int32, shape).cpu().numpy()
        return codes

    def _check_codes(self, codes: np.ndarray) -> None:
        contract, (rows, frames, _) = self.config.contract, codes.shape
        _within(f"{contract.codes}: frames", frames, frames, contract.max_frames, low=1)
        _within(f"{contract.codes}: rows", rows, rows, contract.max_batch, low=1)
        _in_range(contract.codes, codes, self.config.codebook_size - 1)


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


def _in_range(name: str, array: np.ndarray, high: int) -> None:
    _within(name, int(array.min()), int(array.max()), high)


def _within(name: str, smallest: int, largest: int, high: int, low: int = 0) -> None:
    for value in (smallest, largest):
        if not low <= value <= high:
            raise InvalidInputError(f"{name}: {value} given, {low} to {high} expected")
