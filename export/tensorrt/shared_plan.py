"""A plan in another process, on device memory that this process maps as PyTorch tensors."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from export.profiles import Shapes, find
from export.tensorrt.cuda import Device, map_buffer
from export.tensorrt.process import PlanProcess, SharedTensors, TensorRtSettings

Tensors = dict[str, Tensor]
# NaN as a float, out of range as a code or a history.
POISON = 0xFF


class SharedPlan:
    """`run` executes the plan on the memory that `views` exposes."""

    def __init__(self, settings: TensorRtSettings, path: Path, device: torch.device, failure: str = "") -> None:
        """As PlanProcess."""
        self.process = PlanProcess(settings, path, failure)
        self.dtypes = {name: getattr(torch, dtype.name) for name, dtype in self.process.dtypes.items()}
        self.run = self.process.run
        self._shared = self.process.share()
        self._memory = mapped(self._shared, device)

    def __call__(self, inputs: Tensors) -> Tensors:
        """Runs on inputs on any device; the caller owns the outputs, which are NaN where the plan wrote nothing."""
        shapes = {name: list(tensor.shape) for name, tensor in inputs.items()}
        self._poison()
        for name, view in self.views(shapes).items():
            view.copy_(inputs[name])
        if self._memory.is_cuda:
            torch.cuda.synchronize(self._memory.device)
        return {name: view.clone() for name, view in self.views(self.run(shapes)).items()}

    def takes(self, shapes: Shapes) -> bool:
        """Whether the plan was built for these input shapes; the shared memory then has room for them."""
        return find(self._shared.profiles, shapes) is not None

    def views(self, shapes: Mapping[str, Sequence[int]]) -> Tensors:
        """The shared memory as tensors of these shapes."""
        views = {}
        for name, shape in shapes.items():
            start, dtype = self._shared.offsets[name], self.dtypes[name]
            views[name] = self._memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(*shape)
        return views

    def _poison(self) -> None:
        self._memory.fill_(POISON)


class DeviceMemory:
    """Exposes device memory to PyTorch without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def mapped(shared: SharedTensors, device: torch.device) -> Tensor:
    """uint8 [size]"""
    return torch.as_tensor(DeviceMemory(map_buffer(Device(), shared.handle), shared.size), device=device)
