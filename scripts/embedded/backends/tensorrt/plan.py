"""A plan on PyTorch's tensors and streams, with CUDA graphs of the shapes that the model configuration lists."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


class Plan(ABC):
    """Runs on a stream of its own; `run` returns when the outputs are there."""

    dtypes: dict[str, torch.dtype]
    dims: Shapes
    """Of inputs and outputs, -1 where any size fits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._graphs: list[Graph] = []

    def run(self, inputs: Tensors) -> Tensors:
        """Raises InvalidInputError for a shape that the plan was not built for."""
        graph = choose(self._graphs, inputs)
        with torch.cuda.stream(self._stream):
            outputs = graph.replay(inputs) if graph else self._launch(inputs)
        self._stream.synchronize()
        return outputs

    def capture(self, shapes: Shapes, smallest: int) -> None:
        """Record a graph of these shapes, for batches of `smallest` rows and more."""
        with torch.cuda.stream(self._stream):
            self._graphs.append(self._record(shapes, smallest))

    @abstractmethod
    def _launch(self, inputs: Tensors) -> Tensors:
        """Outputs of tensors that lie anywhere, the caller's own."""

    @abstractmethod
    def _record(self, shapes: Shapes, smallest: int) -> "Graph": ...


class Replay(Protocol):
    @property
    def replay(self) -> Callable[[], object]:
        """Runs what was recorded, behind the current stream."""


@dataclass(frozen=True)
class Graph:
    """One recorded shape with the tensors it reads and writes; it serves smaller batches too, down to `smallest`."""

    recorded: Replay
    inputs: Tensors
    outputs: Tensors
    smallest: int

    def fits(self, inputs: Tensors) -> bool:
        rows = len(next(iter(inputs.values())))
        largest = len(next(iter(self.inputs.values())))
        equal = all(tensor.shape[1:] == self.inputs[name].shape[1:] for name, tensor in inputs.items())
        return equal and self.smallest <= rows <= largest

    def replay(self, inputs: Tensors) -> Tensors:
        """The outputs are copies: the next replay writes over the graph's own."""
        rows = len(next(iter(inputs.values())))
        for name, tensor in inputs.items():
            self.inputs[name][:rows].copy_(tensor)
        self.recorded.replay()
        return {name: tensor[:rows].clone() for name, tensor in self.outputs.items()}


def choose(graphs: list[Graph], inputs: Tensors) -> Graph | None:
    return next((graph for graph in graphs if graph.fits(inputs)), None)


def graph_shapes(config: dict[str, Any]) -> list[tuple[Shapes, int]]:
    """The shapes of each graph_spec of a model configuration, batch first, and the smallest batch that it serves."""
    cuda = config.get("optimization", {}).get("cuda", {})
    if not cuda.get("graphs"):
        return []
    return [(_shapes(spec), _smallest(spec)) for spec in cuda.get("graph_spec", [])]


def _shapes(spec: dict[str, Any]) -> Shapes:
    rows = int(spec["batch_size"])
    return {name: (rows, *map(int, shape["dim"])) for name, shape in spec["input"].items()}


def _smallest(spec: dict[str, Any]) -> int:
    return int(spec.get("graph_lower_bound", spec)["batch_size"])
