"""A plan on PyTorch's tensors and streams, with CUDA graphs of the shapes that the model configuration lists."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorrt as trt  # type: ignore[import-not-found]
import torch
from merged_runs import InvalidInputError  # type: ignore[import-not-found]
from torch import Tensor

Tensors = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
DTYPES = {trt.float32: torch.float32, trt.float16: torch.float16, trt.int32: torch.int32}


class Plan:
    """Runs on a stream of its own; `run` returns when the outputs are there."""

    def __init__(self, path: Path, device: torch.device) -> None:
        """Raises RuntimeError when this TensorRT or this GPU is not the plan's."""
        self._device = device
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            here = f"TensorRT {trt.__version__} on {torch.cuda.get_device_name(device)}"
            raise RuntimeError(f"{path}: {here} does not load it: build it on this machine")
        self._context = self._engine.create_execution_context()
        self._stream = torch.cuda.Stream(device)
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        self.dtypes = {name: DTYPES[self._engine.get_tensor_dtype(name)] for name in names}
        self.dims = {name: tuple(self._engine.get_tensor_shape(name)) for name in names}
        self.outputs = [n for n in names if self._engine.get_tensor_mode(n) == trt.TensorIOMode.OUTPUT]
        self._graphs: list[Graph] = []

    def run(self, inputs: Tensors) -> Tensors:
        """Raises InvalidInputError for a shape that the plan was not built for."""
        graph = choose(self._graphs, inputs)
        with torch.cuda.stream(self._stream):
            outputs = graph.replay(inputs) if graph else self._launch(self._on_device(inputs))
        self._stream.synchronize()
        return outputs

    def capture(self, shapes: Shapes, smallest: int) -> None:
        """Record a graph of these shapes, for batches of `smallest` rows and more."""
        with torch.cuda.stream(self._stream):
            inputs = {n: torch.zeros(shape, dtype=self.dtypes[n], device=self._device) for n, shape in shapes.items()}
            self._launch(inputs)
            self._stream.synchronize()
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded, stream=self._stream):
                outputs = self._launch(inputs)
        self._graphs.append(Graph(recorded, inputs, outputs, smallest))

    def _on_device(self, inputs: Tensors) -> Tensors:
        return {name: tensor.to(self._device).contiguous() for name, tensor in inputs.items()}

    def _launch(self, inputs: Tensors) -> Tensors:
        for name, tensor in inputs.items():
            if not self._context.set_input_shape(name, tuple(tensor.shape)):
                raise InvalidInputError(f"{name}: the plan was not built for the shape {list(tensor.shape)}")
        shapes = {name: tuple(self._context.get_tensor_shape(name)) for name in self.outputs}
        outputs = {n: torch.empty(shape, dtype=self.dtypes[n], device=self._device) for n, shape in shapes.items()}
        for name, tensor in (inputs | outputs).items():
            self._context.set_tensor_address(name, tensor.data_ptr())
        if not self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("the plan could not be launched")
        return outputs


@dataclass(frozen=True)
class Graph:
    """One recorded shape with the tensors it reads and writes; it serves smaller batches too, down to `smallest`."""

    recorded: Any
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
