"""A plan that TensorRT runs in this process."""

from pathlib import Path

import tensorrt as trt  # type: ignore[import-not-found]
import torch
from merged_runs import InvalidInputError  # type: ignore[import-not-found]
from plan import Plan, Tensors  # type: ignore[import-not-found]

from export.tensorrt.api import load_plugins
from export.tensorrt.engine import Engine, ShapeError


class OwnPlan(Plan):  # type: ignore[misc]
    def __init__(self, path: Path, device: torch.device) -> None:
        """Raises TensorRtError if the plan is for another TensorRT or GPU."""
        super().__init__(device)
        load_plugins()
        self._engine = Engine(trt, path, torch.cuda.get_device_name(device), self._stream.cuda_stream)
        self._stream.synchronize()
        self.dtypes = {name: getattr(torch, dtype) for name, dtype in self._engine.dtypes.items()}
        self.dims = {name: tuple(dims) for name, dims in self._engine.dims.items()}

    def _launch(self, inputs: Tensors) -> Tensors:
        inputs = {name: tensor.to(self._device).contiguous() for name, tensor in inputs.items()}
        try:
            context = self._engine.context({name: list(tensor.shape) for name, tensor in inputs.items()})
        except ShapeError as error:
            raise InvalidInputError(str(error)) from None
        shapes = {name: tuple(context.get_tensor_shape(name)) for name in self._engine.outputs}
        outputs = {n: torch.empty(shape, dtype=self.dtypes[n], device=self._device) for n, shape in shapes.items()}
        for name, tensor in (inputs | outputs).items():
            context.set_tensor_address(name, tensor.data_ptr())
        if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("the plan could not be launched")
        return outputs
