"""A plan that TensorRT runs in another Python (export.tensorrt_run), on device memory that this process maps."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from merged_runs import InvalidInputError  # type: ignore[import-not-found]
from plan import Graph, Plan, Shapes, Tensors  # type: ignore[import-not-found]
from torch import Tensor

from export.cuda import Device, map_buffer
from export.plan_process import PlanProcess, SharedTensors, TensorRtSettings


class OtherPlan(Plan):  # type: ignore[misc]
    def __init__(self, path: Path, device: torch.device, python: Path) -> None:
        """Raises PlanError when that TensorRT or this GPU is not the plan's."""
        super().__init__(device)
        self._process = PlanProcess(TensorRtSettings(python), path)
        self.dtypes = {name: getattr(torch, dtype.name) for name, dtype in self._process.dtypes.items()}
        self.dims = {name: tuple(dims) for name, dims in self._process.dims.items()}
        self._shared = self._process.share()
        self._memory = mapped(self._shared, device)

    def _record(self, shapes: Shapes, smallest: int) -> Graph:
        asked = {name: list(shape) for name, shape in shapes.items()}
        outputs = self._process.capture(asked)
        return Graph(Recorded(partial(self._run, asked)), self._views(shapes), self._views(outputs), smallest)

    def _launch(self, inputs: Tensors) -> Tensors:
        shapes = {name: list(tensor.shape) for name, tensor in inputs.items()}
        for name, shape in shapes.items():
            if any(size > most for size, most in zip(shape, self._shared.largest[name], strict=True)):
                raise InvalidInputError(f"{name}: the plan was not built for the shape {shape}")
        for name, view in self._views(shapes).items():
            view.copy_(inputs[name])
        return {name: view.clone() for name, view in self._views(self._run(shapes)).items()}

    def _run(self, shapes: dict[str, list[int]]) -> dict[str, list[int]]:
        """Shapes of the outputs. The other process knows nothing of this one's stream, which brings the inputs."""
        self._stream.synchronize()
        return self._process.run(shapes)

    def _views(self, shapes: Mapping[str, Sequence[int]]) -> Tensors:
        """Where tensors of these shapes lie."""
        views = {}
        for name, shape in shapes.items():
            start, dtype = self._shared.offsets[name], self.dtypes[name]
            views[name] = self._memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(*shape)
        return views


@dataclass(frozen=True)
class Recorded:
    """A graph of the other process."""

    replay: Callable[[], object]


class Foreign:
    """Device memory as PyTorch takes it without copying."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def mapped(shared: SharedTensors, device: torch.device) -> Tensor:
    """uint8 [size]"""
    return torch.as_tensor(Foreign(map_buffer(Device(), shared.handle), shared.size), device=device)
