"""Stands in for a Python that has TensorRT: `plan_python.py -m export.tensorrt_build|tensorrt_run ...`.

Its plan is the ONNX file itself with the profile beside the graph, which ONNX Runtime runs on the CPU.
QWEN3_TTS_FAKE_PLAN spoils it: "batch" gives the second row of a batch the first row's sound, "wrong" adds one to every
output, "crash" ends the process at the first request.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]

from export.tensorrt_api import TensorRtError, take_standard_output
from export.tensorrt_run import Shapes, serve

DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int32)": "int32"}
FACTS = {
    "library": "tensorrt", "version": "10.14.1.48", "gpu": "NVIDIA H200", "compute_capability": "9.0",
    "strongly_typed": True, "layers": 1, "build_seconds": 0.1,
}  # fmt: skip
PROFILE = "profile"


class OnnxPlan:
    def __init__(self, path: Path, spoil: str) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._profile = json.loads(self._session.get_modelmeta().custom_metadata_map[PROFILE])
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]
        tensors = [*self._session.get_inputs(), *self._session.get_outputs()]
        self.dtypes = {tensor.name: DTYPES[tensor.type] for tensor in tensors}
        self.dims = {tensor.name: [size if type(size) is int else -1 for size in tensor.shape] for tensor in tensors}
        self._shapes: Shapes = {}
        self._spoil = spoil

    def output_shapes(self, shapes: Shapes) -> Shapes:
        """Of the last run."""
        return self._shapes

    def run(self, inputs: dict[str, bytes], shapes: Shapes) -> dict[str, bytes]:
        if self._spoil == "crash":
            sys.exit(3)
        for name, shape in shapes.items():
            smallest, _, largest = self._profile[name]
            if not all(low <= size <= high for low, size, high in zip(smallest, shape, largest, strict=True)):
                raise TensorRtError(f"{name}: the plan does not take the shape {shape}")
        feeds = {name: np.frombuffer(data, self.dtypes[name]).reshape(shapes[name]) for name, data in inputs.items()}
        outputs = dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))
        if self._spoil == "batch" and len(outputs["waveform"]) > 1:
            outputs["waveform"][1] = outputs["waveform"][0]
        if self._spoil == "wrong":
            outputs = {name: array + array.dtype.type(1) for name, array in outputs.items()}
        self._shapes = {name: list(array.shape) for name, array in outputs.items()}
        return {name: array.tobytes() for name, array in outputs.items()}

    def share(self) -> dict[str, Any]:
        """A file in place of device memory: `handle` is its path."""
        room = 1 << 20
        offsets = {name: i * room for i, name in enumerate(self.dims)}
        file, path = tempfile.mkstemp()
        os.close(file)
        self._offsets, self._shared = offsets, np.memmap(path, np.uint8, "w+", shape=(room * len(offsets),))
        largest = {name: shapes[-1] for name, shapes in self._profile.items()}
        return {"handle": path.encode().hex(), "size": self._shared.size, "offsets": offsets, "largest": largest}

    def capture(self, shapes: Shapes) -> Shapes:
        return self.run_shared(shapes)

    def run_shared(self, shapes: Shapes) -> Shapes:
        sizes = {name: math.prod(shape) * np.dtype(self.dtypes[name]).itemsize for name, shape in shapes.items()}
        inputs = {name: self._shared[self._offsets[name] :][:size].tobytes() for name, size in sizes.items()}
        for name, data in self.run(inputs, shapes).items():
            self._shared[self._offsets[name] :][: len(data)] = np.frombuffer(data, np.uint8)
        return self._shapes

    def microseconds(self, shapes: Shapes, repeats: int) -> float:
        rows, frames, _ = shapes["codes"]
        return float(100 * rows * frames)


def build(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("onnx", type=Path)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--profile")
    parser.add_argument("--level", type=int)
    parser.add_argument("--cache")
    options = parser.parse_args(arguments)
    model = onnx.load(options.onnx)
    model.metadata_props.add(key=PROFILE, value=options.profile)
    onnx.save(model, options.plan)
    print("built by a stand-in", file=sys.stderr)
    print(json.dumps(FACTS | {"level": options.level, "size": options.plan.stat().st_size}))


def main() -> None:
    module, *arguments = sys.argv[2:]
    if module == "export.tensorrt_build":
        build(arguments)
        return
    replies = take_standard_output()
    serve(OnnxPlan(Path(arguments[0]), os.environ.get("QWEN3_TTS_FAKE_PLAN", "")), sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
