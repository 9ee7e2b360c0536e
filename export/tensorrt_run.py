"""python -m export.tensorrt_run PLAN: run a plan for another process, in any Python 3.10 or later that has TensorRT.

A request on standard input is a line of JSON, {"shapes": {input: shape}, "sizes": [bytes]} followed by the bytes of the
inputs in that order, or {"time": {input: shape}, "repeats": N}. The answer on standard output is a line of JSON,
{"shapes": {output: shape}, "sizes": [bytes]} followed by the bytes, {"microseconds": M} or {"error": message}. A first
answer, {"dtypes": {tensor: NumPy's name}} or an error, says whether the plan is loaded.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from export.cuda import Buffer, CudaError, Device, Stream
from export.tensorrt_api import TensorRtError, import_tensorrt, take_standard_output

Shapes = dict[str, list[int]]
WARM_UP = 3
# By TensorRT's names.
DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT32": "int32"}


class Runner(Protocol):
    """What answers requests; raises TensorRtError and CudaError."""

    dtypes: dict[str, str]
    """NumPy's names, of all inputs and outputs."""

    def run(self, inputs: dict[str, bytes], shapes: Shapes) -> dict[str, bytes]: ...

    def output_shapes(self, shapes: Shapes) -> Shapes: ...

    def microseconds(self, shapes: Shapes, repeats: int) -> float: ...


class Plan:
    """A plan on the first GPU."""

    def __init__(self, path: Path) -> None:
        self._trt, self._device = import_tensorrt(), Device()
        self._runtime = self._trt.Runtime(self._trt.Logger(self._trt.Logger.WARNING))
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            made = f"TensorRT {self._trt.__version__} on {self._device.name}"
            raise TensorRtError(f"{path}: {made} does not load it: it was made by another version or for another GPU")
        self._context = self._engine.create_execution_context()
        self._stream = Stream(self._device)
        self._buffers: dict[str, Buffer] = {}
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        self.dtypes = {name: DTYPES[self._engine.get_tensor_dtype(name).name] for name in names}
        self._outputs = [n for n in names if self._engine.get_tensor_mode(n) == self._trt.TensorIOMode.OUTPUT]

    def output_shapes(self, shapes: Shapes) -> Shapes:
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, shape):
                raise TensorRtError(f"{name}: the plan does not take the shape {shape}")
        return {name: list(self._context.get_tensor_shape(name)) for name in self._outputs}

    def run(self, inputs: dict[str, bytes], shapes: Shapes) -> dict[str, bytes]:
        outputs = self._bind(shapes)
        for name, data in inputs.items():
            self._buffers[name].write(data)
        self._launch()
        self._stream.synchronize()
        return {name: self._buffers[name].read(size) for name, size in outputs.items()}

    def microseconds(self, shapes: Shapes, repeats: int) -> float:
        self._bind(shapes)
        for _ in range(WARM_UP):
            self._launch()
        self._stream.synchronize()
        replay = self._stream.capture(self._launch)
        replay()
        return self._stream.microseconds(replay, repeats)

    def _bind(self, shapes: Shapes) -> dict[str, int]:
        """Give every tensor its memory; returns how many bytes each output has."""
        every = {**shapes, **self.output_shapes(shapes)}
        sizes = {name: math.prod(shape) * self._item_size(name) for name, shape in every.items()}
        for name, size in sizes.items():
            self._context.set_tensor_address(name, self._buffer(name, size).address)
        return {name: sizes[name] for name in self._outputs}

    def _item_size(self, name: str) -> int:
        return int(self._engine.get_tensor_dtype(name).itemsize)

    def _buffer(self, name: str, size: int) -> Buffer:
        known = self._buffers.get(name)
        if known is None or known.size < size:
            if known is not None:
                known.free()
            self._buffers[name] = Buffer(self._device, size)
        return self._buffers[name]

    def _launch(self) -> None:
        if not self._context.execute_async_v3(self._stream.handle):
            raise TensorRtError("the plan could not be launched")


def serve(plan: Runner, requests: BinaryIO, replies: BinaryIO) -> None:
    """Say what the plan takes and gives, then answer requests until their stream ends."""
    _write(replies, {"dtypes": plan.dtypes}, [])
    while line := requests.readline():
        request = json.loads(line)
        data = [requests.read(size) for size in request.get("sizes", [])]
        try:
            answer, payload = _answer(plan, request, data)
        except (TensorRtError, CudaError) as error:
            answer, payload = {"error": str(error)}, []
        _write(replies, answer, payload)


def _answer(plan: Runner, request: dict[str, Any], data: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    if "time" in request:
        return {"microseconds": plan.microseconds(request["time"], request["repeats"])}, []
    shapes = request["shapes"]
    outputs = plan.run(dict(zip(shapes, data, strict=True)), shapes)
    found = plan.output_shapes(shapes)
    payload = list(outputs.values())
    return {"shapes": {name: found[name] for name in outputs}, "sizes": [len(part) for part in payload]}, payload


def _write(replies: BinaryIO, answer: dict[str, Any], payload: list[bytes]) -> None:
    replies.write(json.dumps(answer).encode() + b"\n")
    for part in payload:
        replies.write(part)
    replies.flush()


def main() -> None:
    replies = take_standard_output()
    try:
        plan = Plan(Path(sys.argv[1]))
    except (TensorRtError, CudaError) as error:
        _write(replies, {"error": str(error)}, [])
        sys.exit(1)
    serve(plan, sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
