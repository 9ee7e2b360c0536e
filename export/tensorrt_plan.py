"""A graph as a TensorRT plan, for Triton's TensorRT backend.

TensorRT works in processes of its own (tensorrt_build, tensorrt_run): it may live in another Python than PyTorch, and
when it crashes, the message names the plan.
"""

import json
import os
import subprocess
import sys
import tempfile
import weakref
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from export.graph import Arrays, Graph, Runtime
from export.onnx_opset import OPSET, to_opset_17
from qwen3_tts_engine.manifest import PLAN, EngineFacts

ROOT = Path(__file__).parents[1]


class PlanError(RuntimeError):
    """TensorRT did not build or run a plan; its own messages come before this one."""


@dataclass(frozen=True)
class TensorRtSettings:
    """Which TensorRT builds, and how long it may search."""

    python: Path = Path(sys.executable)
    level: int = 3
    cache: Path = Path.home() / ".cache" / "qwen3-tts-triton"


DEFAULTS = TensorRtSettings()


def tensorrt(settings: TensorRtSettings) -> Runtime:
    return Runtime("tensorrt", PLAN, OPSET, make=partial(build, settings), load=partial(PlanProcess, settings))


def build(settings: TensorRtSettings, graph: Graph, path: Path) -> EngineFacts:
    """Build the graph's plan at `path`. Raises PlanError."""
    with tempfile.TemporaryDirectory() as folder:
        onnx = Path(folder) / "graph.onnx"
        graph.write(onnx)
        to_opset_17(onnx)
        profile = json.dumps(graph.profile)
        options = ["--profile", profile, "--level", str(settings.level), "--cache", str(settings.cache)]
        result = _say(_command(settings, "export.tensorrt_build", onnx, path, *options))
    return EngineFacts.model_validate({**json.loads(result), "profile": graph.profile})


class PlanProcess:
    """A plan that runs in a process of its own (graph.Run); inputs become what it takes. Raises PlanError."""

    def __init__(self, settings: TensorRtSettings, path: Path) -> None:
        self.path = path
        command = _command(settings, "export.tensorrt_run", path)
        self._process = subprocess.Popen(**command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        weakref.finalize(self, self._process.kill)
        loaded, _ = self._answer()
        self._dtypes = {name: np.dtype(dtype) for name, dtype in loaded["dtypes"].items()}

    def __call__(self, inputs: Arrays) -> Arrays:
        data = [array.astype(self._dtypes[name]).tobytes() for name, array in inputs.items()]
        shapes = {name: list(array.shape) for name, array in inputs.items()}
        answer, outputs = self._ask({"shapes": shapes, "sizes": [len(part) for part in data]}, data)
        return {
            name: np.frombuffer(part, self._dtypes[name]).reshape(shape)
            for (name, shape), part in zip(answer["shapes"].items(), outputs, strict=True)
        }

    def microseconds(self, shapes: dict[str, list[int]], repeats: int) -> float:
        """GPU time of one replay of the plan's CUDA graph, by CUDA events."""
        answer, _ = self._ask({"time": shapes, "repeats": repeats}, [])
        return float(answer["microseconds"])

    def _ask(self, request: dict[str, Any], data: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        requests = self._process.stdin
        assert requests is not None
        try:
            for part in (json.dumps(request).encode(), b"\n", *data):
                requests.write(part)
            requests.flush()
        except BrokenPipeError:
            pass  # the missing answer says why
        return self._answer()

    def _answer(self) -> tuple[dict[str, Any], list[bytes]]:
        replies = self._process.stdout
        assert replies is not None
        line = replies.readline()
        if not line:
            raise PlanError(f"{self.path}: TensorRT ended with exit code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PlanError(f"{self.path}: cannot be verified, so it is not kept: {answer['error']}")
        return answer, [replies.read(size) for size in answer.get("sizes", [])]


def _command(settings: TensorRtSettings, module: str, *arguments: Any) -> dict[str, Any]:
    """Arguments of Popen for a module of ours in the Python that has TensorRT."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "args": [str(settings.python), "-m", module, *map(str, arguments)],
        "env": {**os.environ, "PYTHONPATH": path},
    }


def _say(command: dict[str, Any]) -> str:
    """Run to the end, passing its messages on; returns its output."""
    process = subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    messages, last = process.stderr, ""
    assert messages is not None
    for line in messages:
        last = line.strip() or last
        # Through Python's own stream, which the progress display redirects.
        print(f"  {line.rstrip()}", file=sys.stderr)
    output, _ = process.communicate()
    if process.returncode:
        raise PlanError(last or f"TensorRT ended with exit code {process.returncode}")
    return str(output)
