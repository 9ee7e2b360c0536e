"""Validation of requests."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from code2wav_step.config import StepConfig

# Row to read, row to write, history and key (qwen3_tts_engine/codec/contract.py).
PLACE_SIZE = 4


class InvalidInputError(ValueError):
    """A request does not fit the model; the message names the input, the given and the expected."""


class Request(NamedTuple):
    """codes int32 [B, T, 16] and places int32 [B, 4] (qwen3_tts_engine/codec/contract.py). Nobody's state is read where
    another entry's is written."""

    codes: np.ndarray
    places: np.ndarray


@dataclass(frozen=True)
class RequestReader:
    config: StepConfig

    def read(self, tensors: dict[str, np.ndarray]) -> Request:
        """Raises InvalidInputError."""
        names = self.config.contract
        codes = _array(tensors, names.codes, (-1, -1, self.config.num_quantizers))
        return self.check(Request(codes, _array(tensors, names.places, (len(codes), PLACE_SIZE))))

    def check(self, request: Request) -> Request:
        """The request, whose arrays have the types and shapes of Request. Raises InvalidInputError."""
        contract, places, (rows, frames, _) = self.config.contract, request.places, request.codes.shape
        _within(f"{contract.codes}: frames", frames, frames, contract.max_frames, low=1)
        _within(f"{contract.codes}: rows", rows, rows, contract.max_batch, low=1)
        _in_range(contract.codes, request.codes, self.config.codebook_size - 1)
        _in_range(f"{contract.places}: rows", places[:, :2], contract.num_rows - 1)
        _in_range(f"{contract.places}: history", places[:, 2], self.config.window)
        return request


def _array(tensors: dict[str, np.ndarray], name: str, dims: tuple[int, ...]) -> np.ndarray:
    expected = f"int32 {list(dims)} expected"
    array = tensors.get(name)
    if array is None:
        raise InvalidInputError(f"{name}: missing, {expected}")
    same_rank = array.ndim == len(dims)
    fits = same_rank and all(dim in (-1, size) for dim, size in zip(dims, array.shape, strict=True))
    if not fits or array.dtype != np.int32:
        raise InvalidInputError(f"{name}: {array.dtype} {list(array.shape)} given, {expected}")
    return array


def _in_range(name: str, array: np.ndarray, high: int) -> None:
    _within(name, int(array.min()), int(array.max()), high)


def _within(name: str, smallest: int, largest: int, high: int, low: int = 0) -> None:
    for value in (smallest, largest):
        if not low <= value <= high:
            raise InvalidInputError(f"{name}: {value} given, {low} to {high} expected")
