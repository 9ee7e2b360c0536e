"""Stands in for a Python that has TensorRT: `plan_python.py -m export.tensorrt.build|run ...`.

Its plan is the ONNX file with the profiles in its metadata; ONNX Runtime runs it on the CPU.
QWEN3_TTS_FAKE_PLAN injects a fault: "batch" gives the second row of a batch the first row's samples, "wrong" adds one
to every output, "shape:8x4" amplifies 8 rows of 4 frames, "rows" makes equal rows differ, "stale" leaves the shared
memory unchanged from the second request on, "crash" exits at the first request.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
from numpy.typing import NDArray

from export.profiles import Shapes, describe, find
from export.tensorrt.api import TensorRtError, take_standard_output
from export.tensorrt.run import serve

DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int32)": "int32"}
FACTS = {
    "library": "tensorrt", "version": "10.14.1.48", "gpu": "NVIDIA H200", "compute_capability": "9.0",
    "strongly_typed": True, "plugin": False, "layers": 1, "build_seconds": 0.1,
}  # fmt: skip
PROFILES = "profiles"
# Bytes of shared memory for each tensor; the waveform of 64 x 16 frames is the largest.
TENSOR_BYTES = 1 << 23


class OnnxPlan:
    def __init__(self, path: Path, fault: str) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._profiles = json.loads(self._session.get_modelmeta().custom_metadata_map[PROFILES])
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]
        tensors = [*self._session.get_inputs(), *self._session.get_outputs()]
        self.dtypes = {tensor.name: DTYPES[tensor.type] for tensor in tensors}
        self.dims = {tensor.name: [size if type(size) is int else -1 for size in tensor.shape] for tensor in tensors}
        self._shapes: Shapes = {}
        self._fault, self._calls = fault, 0

    def output_shapes(self, shapes: Shapes) -> Shapes:
        """The output shapes of the last run."""
        return self._shapes

    def run(self, inputs: dict[str, bytes], shapes: Shapes) -> dict[str, bytes]:
        if self._fault == "crash":
            sys.exit(3)
        if find(self._profiles, shapes) is None:
            raise TensorRtError(f"the plan does not support {describe(shapes)}")
        feeds = {name: np.frombuffer(data, self.dtypes[name]).reshape(shapes[name]) for name, data in inputs.items()}
        outputs = dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))
        if self._fault == "wrong":
            outputs = {name: array + array.dtype.type(1) for name, array in outputs.items()}
        if "waveform" in outputs:
            self._inject_into_waveform(outputs["waveform"], feeds)
        self._shapes = {name: list(array.shape) for name, array in outputs.items()}
        return {name: array.tobytes() for name, array in outputs.items()}

    def _inject_into_waveform(self, waveform: NDArray[Any], feeds: dict[str, NDArray[Any]]) -> None:
        rows, frames = feeds["codes"].shape[:2]
        if self._fault == "batch" and rows > 1:
            waveform[1] = waveform[0]
        if self._fault == f"shape:{rows}x{frames}":
            waveform *= 1.4
        if self._fault == "rows":
            for first, second in _equal_rows(feeds):
                # Each is within the limit of the correct samples, but not of the other.
                waveform[first] *= 1.025
                waveform[second] *= 0.975

    def share(self) -> dict[str, Any]:
        """A file in place of device memory: `handle` is its path."""
        offsets = {name: i * TENSOR_BYTES for i, name in enumerate(self.dims)}
        file, path = tempfile.mkstemp()
        os.close(file)
        self._offsets, self._shared = offsets, np.memmap(path, np.uint8, "w+", shape=(TENSOR_BYTES * len(offsets),))
        return {
            "handle": path.encode().hex(),
            "size": self._shared.size,
            "offsets": offsets,
            "profiles": self._profiles,
        }

    def run_shared(self, shapes: Shapes) -> Shapes:
        sizes = {name: math.prod(shape) * np.dtype(self.dtypes[name]).itemsize for name, shape in shapes.items()}
        inputs = {name: self._shared[self._offsets[name] :][:size].tobytes() for name, size in sizes.items()}
        outputs = self.run(inputs, shapes)
        self._calls += 1
        for name, data in outputs.items() if self._calls == 1 or self._fault != "stale" else ():
            self._shared[self._offsets[name] :][: len(data)] = np.frombuffer(data, np.uint8)
        return self._shapes

    def microseconds(self, shapes: Shapes, repeats: int) -> float:
        rows, frames, _ = shapes["codes"]
        return float(100 * rows * frames)


def _equal_rows(feeds: dict[str, NDArray[Any]]) -> Iterator[tuple[int, int]]:
    """The first two indices of each row that occurs more than once."""
    places: dict[bytes, list[int]] = {}
    for row in range(len(feeds["codes"])):
        places.setdefault(b"".join(array[row].tobytes() for array in feeds.values()), []).append(row)
    return ((rows[0], rows[1]) for rows in places.values() if len(rows) > 1)


def build(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("onnx", type=Path)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--profiles")
    parser.add_argument("--level", type=int)
    parser.add_argument("--cache")
    options = parser.parse_args(arguments)
    model = onnx.load(options.onnx)
    model.metadata_props.add(key=PROFILES, value=options.profiles)
    onnx.save(model, options.plan)
    print("built by a stand-in", file=sys.stderr)
    print(json.dumps(FACTS | {"level": options.level, "size": options.plan.stat().st_size}))


def main() -> None:
    module, *arguments = sys.argv[2:]
    if module == "export.tensorrt.build":
        build(arguments)
        return
    replies = take_standard_output()
    serve(OnnxPlan(Path(arguments[0]), os.environ.get("QWEN3_TTS_FAKE_PLAN", "")), sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
