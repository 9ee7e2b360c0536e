"""Runs the requests of one execution: equal shapes share a run, and a failing request does not fail the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

# By name; NumPy arrays, or PyTorch tensors on any device.
Arrays = dict[str, Any]
Answer = Arrays | Exception
RANGE = "{}.range"


class InvalidInputError(ValueError):
    """A request does not fit the model; the message names the input, the given and the expected."""


@dataclass(frozen=True)
class Input:
    """An input of the model; `dims` is its whole shape, -1 for dynamic sizes, `limits` are the allowed values."""

    name: str
    dtype: Any
    dims: tuple[int, ...]
    limits: tuple[int, int] | None = None

    def check(self, request: Arrays) -> None:
        expected = f"{self.dtype} {list(self.dims)} expected"
        array = request.get(self.name)
        if array is None:
            raise InvalidInputError(f"{self.name}: missing, {expected}")
        same_rank = array.ndim == len(self.dims)
        fits = same_rank and all(dim in (-1, size) for dim, size in zip(self.dims, array.shape, strict=True))
        if not fits or array.dtype != self.dtype:
            raise InvalidInputError(f"{self.name}: {array.dtype} {list(array.shape)} given, {expected}")
        if self.limits and min(array.shape):
            smallest, largest = int(array.min()), int(array.max())
            if smallest < self.limits[0] or largest > self.limits[1]:
                allowed = f"must be {self.limits[0]} to {self.limits[1]}"
                raise InvalidInputError(f"{self.name}: values from {smallest} to {largest} given, {allowed}")


def limits(config: dict[str, Any], name: str) -> tuple[int, int] | None:
    """An input's allowed values, from the parameter "<name>.range" of the configuration: "smallest..largest"."""
    text = config["parameters"].get(RANGE.format(name), {}).get("string_value")
    if text is None:
        return None
    smallest, largest = text.split("..")
    return int(smallest), int(largest)


@dataclass(frozen=True)
class MergingModel:
    """`run` maps inputs to outputs by name; requests are merged only if their first dimension is a batch."""

    inputs: tuple[Input, ...]
    batched: bool
    run: Callable[[Arrays], Arrays]
    concatenate: Callable[[list[Any]], Any]

    def answer(self, requests: Sequence[Arrays]) -> list[Answer]:
        """The outputs of each request in order, or its error."""
        answers: list[Answer | None] = [self._problem(request) for request in requests]
        for group in self._groups(requests, [i for i, problem in enumerate(answers) if problem is None]):
            for i, answer in zip(group, self._run([requests[i] for i in group]), strict=True):
                answers[i] = answer
        return [answer for answer in answers if answer is not None]

    def _problem(self, request: Arrays) -> InvalidInputError | None:
        try:
            for expected in self.inputs:
                expected.check(request)
        except InvalidInputError as error:
            return error
        return None

    def _groups(self, requests: Sequence[Arrays], indices: Sequence[int]) -> list[list[int]]:
        """Indices of the requests of each run. The server limits the rows of an execution to a batch."""
        if not self.batched:
            return [[i] for i in indices]
        groups: dict[object, list[int]] = {}
        for i in indices:
            groups.setdefault(tuple(requests[i][x.name].shape[1:] for x in self.inputs), []).append(i)
        return list(groups.values())

    def _run(self, requests: Sequence[Arrays]) -> list[Answer]:
        try:
            return list(self._run_merged(requests))
        except Exception as error:
            # One by one, so that only the failing request gets an error.
            return [error] if len(requests) == 1 else [self._run([request])[0] for request in requests]

    def _run_merged(self, requests: Sequence[Arrays]) -> list[Arrays]:
        if len(requests) == 1:
            return [self.run(requests[0])]
        names = [expected.name for expected in self.inputs]
        outputs = self.run({name: self.concatenate([request[name] for request in requests]) for name in names})
        ends = accumulate((len(request[names[0]]) for request in requests), initial=0)
        return [{name: array[start:end] for name, array in outputs.items()} for start, end in pairwise(ends)]
