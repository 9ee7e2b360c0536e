"""python -m export.tensorrt.run PLAN: run a plan for another process, in any Python 3.10 or later with TensorRT.

Requests on standard input and replies on standard output are lines of JSON; either may be followed by bytes:

    {"shapes": {input: shape}, "sizes": [bytes]} and the inputs' bytes
                                          {"shapes": {output: shape}, "sizes": [bytes]} and the outputs' bytes
    {"time": {input: shape}, "repeats": N}
                                          {"microseconds": M}

Any reply may be {"error": message}. The first reply, {"dtypes": {tensor: NumPy's name}, "dims": {tensor: shape}} or an
error, reports whether the plan is loaded.
"""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from export.profiles import Shapes, describe
from export.tensorrt.api import TensorRtError, import_tensorrt, take_standard_output
from export.tensorrt.cuda import Buffer, CudaError, CudaStream, Device
from export.tensorrt.engine import Engine

WARM_UP = 3


class PlanRunner(Protocol):
    """Executes requests; raises TensorRtError and CudaError."""

    dtypes: dict[str, str]
    """NumPy's names of all inputs and outputs."""
    dims: Shapes
    """Dimensions of all inputs and outputs, -1 where dynamic."""

    def run(self, inputs: dict[str, bytes], shapes: Shapes) -> dict[str, bytes]: ...

    def output_shapes(self, shapes: Shapes) -> Shapes: ...

    def microseconds(self, shapes: Shapes, repeats: int) -> float: ...


class Plan:
    """A plan on the first GPU."""

    def __init__(self, path: Path) -> None:
        self._device = Device()
        self._stream = CudaStream(self._device)
        self._engine = Engine(import_tensorrt(), path, self._device.name, self._stream.handle)
        self._stream.synchronize()
        self.dtypes, self.dims = self._engine.dtypes, self._engine.dims
        self.output_shapes = self._engine.output_shapes
        self._buffers: dict[str, Buffer] = {}

    def run(self, inputs: dict[str, bytes], shapes: Shapes) -> dict[str, bytes]:
        sizes, launch = self._sizes(shapes), self._bind(shapes)
        for name, data in inputs.items():
            self._buffers[name].write(data)
        launch()
        self._stream.synchronize()
        return {name: self._buffers[name].read(sizes[name]) for name in self._engine.outputs}

    def microseconds(self, shapes: Shapes, repeats: int) -> float:
        launch = self._bind(shapes)
        for _ in range(WARM_UP):
            launch()
        return self._stream.microseconds(launch, repeats)

    def _bind(self, shapes: Shapes) -> Callable[[], None]:
        """Allocates a buffer for every tensor; returns a function that launches the plan on them."""
        context = self._engine.context(shapes)
        for name, size in self._sizes(shapes).items():
            context.set_tensor_address(name, self._buffer(name, size).address)

        def launch() -> None:
            if not context.execute_async_v3(self._stream.handle):
                raise TensorRtError(f"the plan could not be launched with {describe(shapes)}")

        return launch

    def _sizes(self, shapes: Shapes) -> dict[str, int]:
        """Bytes of every tensor for inputs of these shapes."""
        every = {**shapes, **self.output_shapes(shapes)}
        return {name: math.prod(shape) * self._engine.item_size(name) for name, shape in every.items()}

    def _buffer(self, name: str, size: int) -> Buffer:
        known = self._buffers.get(name)
        if known is None or known.size < size:
            if known is not None:
                known.free()
            self._buffers[name] = Buffer(self._device, size)
        return self._buffers[name]


def serve(plan: PlanRunner, requests: BinaryIO, replies: BinaryIO) -> None:
    """Sends the plan's types and shapes, then replies to requests until end of file."""
    _write(replies, {"dtypes": plan.dtypes, "dims": plan.dims}, [])
    while line := requests.readline():
        request = json.loads(line)
        data = [requests.read(size) for size in request.get("sizes", [])]
        try:
            reply, payload = _execute(plan, request, data)
        except (TensorRtError, CudaError) as error:
            reply, payload = {"error": str(error)}, []
        _write(replies, reply, payload)


def _execute(plan: PlanRunner, request: dict[str, Any], data: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    if "time" in request:
        return {"microseconds": plan.microseconds(request["time"], request["repeats"])}, []
    shapes = request["shapes"]
    outputs = plan.run(dict(zip(shapes, data, strict=True)), shapes)
    found = plan.output_shapes(shapes)
    payload = list(outputs.values())
    return {"shapes": {name: found[name] for name in outputs}, "sizes": [len(part) for part in payload]}, payload


def _write(replies: BinaryIO, reply: dict[str, Any], payload: list[bytes]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
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
