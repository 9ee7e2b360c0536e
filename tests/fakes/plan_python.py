"""Stands in for a Python that has TensorRT: `plan_python.py -m export.tensorrt.build|run ...`.

A plan is a ZIP file of its source and its profiles. That of an encoder's ONNX file is run by ONNX Runtime on the CPU;
that of the codec's step, in place of whose program there are weights (python_form), by PyTorch.
QWEN3_TTS_FAKE_PLAN injects a fault: "batch" gives the second row of a batch the first row's samples, "wrong" adds one
to every output, "shape:8x4" amplifies 8 rows of 4 frames, "rows" makes equal rows differ, "stale" repeats the samples
of the first call of a shape, "rows missing" denies all rows, "crash" exits at the first request.
"""

import argparse
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[2] / "model_repository" / "code2wav" / "1"))

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from code2wav_step import startup
from code2wav_step.pcm import mark_denied
from export.profiles import Profile, Shapes, describe, find
from export.tensorrt.api import TensorRtError, take_standard_output
from export.tensorrt.run import serve
from export.tensorrt.step import PROGRAM_SUFFIX

CPU = torch.device("cpu")
DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int32)": "int32"}
FACTS = {
    "library": "tensorrt", "version": "10.14.1.48", "gpu": "NVIDIA H200", "compute_capability": "9.0",
    "strongly_typed": True, "layers": 1, "build_seconds": 0.1,
}  # fmt: skip
PROFILES = "profiles.json"
Arrays = dict[str, NDArray[Any]]


class Runner(Protocol):
    dtypes: dict[str, str]
    dims: Shapes

    def run(self, inputs: Arrays) -> Arrays: ...


class OnnxRunner:
    def __init__(self, path: Path) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]
        tensors = [*self._session.get_inputs(), *self._session.get_outputs()]
        self.dtypes = {tensor.name: DTYPES[tensor.type] for tensor in tensors}
        self.dims = {tensor.name: [size if type(size) is int else -1 for size in tensor.shape] for tensor in tensors}

    def run(self, inputs: Arrays) -> Arrays:
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))


class StepRunner:
    """The plugin's layer: codes and places in, two samples an element out."""

    def __init__(self, path: Path) -> None:
        self._runner = startup.make_runner(startup.load_weights(path, CPU), CPU)
        self._rows = self._runner.new_rows()
        self.dtypes = dict.fromkeys(("codes", "places", "pcm"), "int32")
        self.dims = {"codes": [-1, -1, 16], "places": [-1, 4], "pcm": [-1, -1]}
        self.samples = np.empty(0, np.int16)

    def run(self, inputs: Arrays) -> Arrays:
        codes = inputs["codes"].clip(0, self._runner.config.codebook_size - 1)
        opened = self._rows.open(inputs["places"])
        self.samples = self._runner.decode(codes, self._rows, opened).copy()
        mark_denied(self.samples, opened.denied, self._runner.config.contract)
        return {"pcm": self.samples.view(np.int32)}


class FakePlan:
    """run.PlanRunner."""

    def __init__(self, path: Path, fault: str) -> None:
        with zipfile.ZipFile(path) as file, tempfile.TemporaryDirectory() as folder:
            self._profiles: list[Profile] = json.loads(file.read(PROFILES))
            [source] = [name for name in file.namelist() if name != PROFILES]
            kind = StepRunner if source.endswith(PROGRAM_SUFFIX) else OnnxRunner
            self._runner: Runner = kind(Path(file.extract(source, folder)))
        self.dtypes, self.dims = self._runner.dtypes, self._runner.dims
        self._shapes: Shapes = {}
        self._fault, self._first = fault, dict[tuple[int, ...], NDArray[Any]]()

    def output_shapes(self, shapes: Shapes) -> Shapes:
        """The output shapes of the last run."""
        return self._shapes

    def run(self, inputs: dict[str, bytes], shapes: Shapes) -> dict[str, bytes]:
        if self._fault == "crash":
            sys.exit(3)
        if find(self._profiles, shapes) is None:
            raise TensorRtError(f"the plan does not support {describe(shapes)}")
        feeds = {name: np.frombuffer(data, self.dtypes[name]).reshape(shapes[name]) for name, data in inputs.items()}
        outputs = self._runner.run(feeds)
        if self._fault == "wrong":
            outputs = {name: array + array.dtype.type(1) for name, array in outputs.items()}
        if isinstance(self._runner, StepRunner):
            self._inject(self._runner.samples, feeds)
        self._shapes = {name: list(array.shape) for name, array in outputs.items()}
        return {name: array.tobytes() for name, array in outputs.items()}

    def _inject(self, samples: NDArray[Any], feeds: Arrays) -> None:
        rows, frames = feeds["codes"].shape[:2]
        if self._fault == "batch" and rows > 1:
            samples[1] = samples[0]
        if self._fault == f"shape:{rows}x{frames}":
            samples[:] = (samples * 0.6).astype(np.int16)
        if self._fault == "rows missing":
            samples[:, :2] = -32768
        if self._fault == "stale":
            samples[:] = self._first.setdefault(samples.shape, samples.copy())
        if self._fault == "rows" and rows > 1:
            # Each is within the limit of the correct samples, but not of the other.
            samples[0] = (samples[0] * 0.975).astype(np.int16)
            samples[1:] = (samples[1:] * 1.025).clip(-32767, 32767).astype(np.int16)

    def microseconds(self, shapes: Shapes, repeats: int) -> float:
        rows, frames, _ = shapes["codes"]
        return float(100 * rows * frames)


def build(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--profiles")
    parser.add_argument("--level", type=int)
    parser.add_argument("--cache")
    options = parser.parse_args(arguments)
    with zipfile.ZipFile(options.plan, "w") as file:
        file.write(options.source, options.source.name)
        file.writestr(PROFILES, options.profiles)
    print("built by a stand-in", file=sys.stderr)
    facts = FACTS | {"level": options.level, "plugin": options.source.suffix == PROGRAM_SUFFIX}
    print(json.dumps(facts | {"size": options.plan.stat().st_size}))


def main() -> None:
    module, *arguments = sys.argv[2:]
    if module == "export.tensorrt.build":
        build(arguments)
        return
    replies = take_standard_output()
    serve(FakePlan(Path(arguments[0]), os.environ.get("QWEN3_TTS_FAKE_PLAN", "")), sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
