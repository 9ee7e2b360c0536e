"""A plan on PyTorch tensors and streams."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


class Plan(ABC):
    """Runs on a stream of its own; `run` returns when the outputs are complete."""

    dtypes: dict[str, torch.dtype]
    dims: dict[str, tuple[int, ...]]
    """Of inputs and outputs, -1 for dynamic sizes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def run(self, inputs: Tensors) -> Tensors:
        """Raises InvalidInputError for a shape that the plan was not built for."""
        with torch.cuda.stream(self._stream):
            outputs = self._launch(inputs)
        self._stream.synchronize()
        return outputs

    @abstractmethod
    def _launch(self, inputs: Tensors) -> Tensors:
        """Runs on inputs on any device; the caller owns the outputs."""
