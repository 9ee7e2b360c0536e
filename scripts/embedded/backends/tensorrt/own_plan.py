"""A plan that TensorRT runs in this process."""

from pathlib import Path

import tensorrt as trt  # type: ignore[import-not-found]
import torch
from merged_runs import InvalidInputError  # type: ignore[import-not-found]
from plan import Graph, Plan, Shapes, Tensors  # type: ignore[import-not-found]

DTYPES = {trt.float32: torch.float32, trt.float16: torch.float16, trt.int32: torch.int32}


class OwnPlan(Plan):  # type: ignore[misc]
    def __init__(self, path: Path, device: torch.device) -> None:
        """Raises RuntimeError when this TensorRT or this GPU is not the plan's."""
        super().__init__(device)
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            here = f"TensorRT {trt.__version__} on {torch.cuda.get_device_name(device)}"
            raise RuntimeError(f"{path}: {here} does not load it: build it on this machine")
        self._context = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        self.dtypes = {name: DTYPES[self._engine.get_tensor_dtype(name)] for name in names}
        self.dims = {name: tuple(self._engine.get_tensor_shape(name)) for name in names}
        self._outputs = [n for n in names if self._engine.get_tensor_mode(n) == trt.TensorIOMode.OUTPUT]

    def _record(self, shapes: Shapes, smallest: int) -> Graph:
        inputs = {n: torch.zeros(shape, dtype=self.dtypes[n], device=self._device) for n, shape in shapes.items()}
        self._enqueue(inputs)
        self._stream.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded, stream=self._stream):
            outputs = self._enqueue(inputs)
        return Graph(recorded, inputs, outputs, smallest)

    def _launch(self, inputs: Tensors) -> Tensors:
        return self._enqueue({name: tensor.to(self._device).contiguous() for name, tensor in inputs.items()})

    def _enqueue(self, inputs: Tensors) -> Tensors:
        for name, tensor in inputs.items():
            if not self._context.set_input_shape(name, tuple(tensor.shape)):
                raise InvalidInputError(f"{name}: the plan was not built for the shape {list(tensor.shape)}")
        shapes = {name: tuple(self._context.get_tensor_shape(name)) for name in self._outputs}
        outputs = {n: torch.empty(shape, dtype=self.dtypes[n], device=self._device) for n, shape in shapes.items()}
        for name, tensor in (inputs | outputs).items():
            self._context.set_tensor_address(name, tensor.data_ptr())
        if not self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("the plan could not be launched")
        return outputs
