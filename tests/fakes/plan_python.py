"""Stands in for a Python that has TensorRT: `plan_python.py -m export.tensorrt_build|tensorrt_run ...`.

Its plan is the ONNX file itself, which ONNX Runtime runs on the CPU. QWEN3_TTS_FAKE_PLAN spoils it: "batch" gives the
second row of a batch the first row's sound, "crash" ends the process at the first request.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import onnxruntime  # type: ignore[import-untyped]

from export.tensorrt_api import TensorRtError, take_standard_output
from export.tensorrt_run import Shapes, serve

DTYPES = {"codes": np.int32, "state": np.float16, "history": np.int32}
FACTS = {
    "library": "tensorrt", "version": "10.14.1.48", "gpu": "NVIDIA H200", "compute_capability": "9.0",
    "strongly_typed": True, "layers": 1, "build_seconds": 0.1,
}  # fmt: skip
MOST_FRAMES = 32


class OnnxPlan:
    def __init__(self, path: Path, spoil: str) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._spoil = spoil

    def output_shapes(self, shapes: Shapes) -> Shapes:
        rows, frames, _ = shapes["codes"]
        if frames > MOST_FRAMES:
            raise TensorRtError(f"codes: the plan does not take the shape {shapes['codes']}")
        return {"waveform": [rows, 1920 * frames], "state_out": shapes["state"]}

    def run(self, inputs: dict[str, bytes], shapes: Shapes) -> dict[str, bytes]:
        if self._spoil == "crash":
            sys.exit(3)
        names = list(self.output_shapes(shapes))
        feeds = {name: np.frombuffer(data, DTYPES[name]).reshape(shapes[name]) for name, data in inputs.items()}
        outputs = dict(zip(names, self._session.run(names, feeds), strict=True))
        if self._spoil == "batch" and len(feeds["codes"]) > 1:
            outputs["waveform"][1] = outputs["waveform"][0]
        return {name: array.tobytes() for name, array in outputs.items()}

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
    shutil.copy(options.onnx, options.plan)
    print("built by a stand-in", file=sys.stderr)
    print(json.dumps(FACTS | {"level": options.level, "size": options.plan.stat().st_size}))


def main() -> None:
    module, *arguments = sys.argv[2:]
    if module == "export.tensorrt_build":
        build(arguments)
        return
    replies = take_standard_output()
    plan = OnnxPlan(Path(arguments[0]), os.environ.get("QWEN3_TTS_FAKE_PLAN", ""))
    replies.write(b"{}\n")
    replies.flush()
    serve(plan, sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
