"""A TensorRT plan that runs in a process of its own (tensorrt_run)."""

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.profiles import Profile, Shapes
from export.tensorrt.api import PLUGIN_LIBRARY

ROOT = Path(__file__).parents[2]
# The environment variable that names the Python which has TensorRT, where it is not this one.
TENSORRT_PYTHON = "QWEN3_TTS_TENSORRT_PYTHON"
Arrays = dict[str, NDArray[Any]]


class PlanError(RuntimeError):
    """TensorRT did not build or run a plan; its own messages come before this one."""


@dataclass(frozen=True)
class TensorRtSettings:
    """Which TensorRT builds, how long it may search, and the compiled plugin (plugin/) where the step is to be one."""

    python: Path = Path(sys.executable)
    level: int = 3
    cache: Path = Path.home() / ".cache" / "qwen3-tts-triton"
    plugin: Path | None = None


DEFAULTS = TensorRtSettings()


@dataclass(frozen=True)
class SharedTensors:
    """A piece of device memory by its CUDA IPC handle, its size in bytes, and where in it each tensor begins.

    `profiles` are the shapes that the plan takes.
    """

    handle: bytes
    size: int
    offsets: dict[str, int]
    profiles: list[Profile]


class PlanProcess:
    """The plan (graph.Run, or on shared memory); inputs become what it takes. Everything raises PlanError."""

    def __init__(self, settings: TensorRtSettings, path: Path, failure: str = "") -> None:
        """`failure` stands before what TensorRT says of an error."""
        self.path = path
        self._failure = failure
        popen = command(settings, "export.tensorrt.run", path)
        self._process = subprocess.Popen(**popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        weakref.finalize(self, self._process.kill)
        loaded, _ = self._answer()
        self.dtypes = {name: np.dtype(dtype) for name, dtype in loaded["dtypes"].items()}
        self.dims: Shapes = loaded["dims"]
        """As the plan was built: -1 where any size fits."""

    def __call__(self, inputs: Arrays) -> Arrays:
        data = [array.astype(self.dtypes[name]).tobytes() for name, array in inputs.items()]
        shapes = {name: list(array.shape) for name, array in inputs.items()}
        answer, outputs = self._ask({"shapes": shapes, "sizes": [len(part) for part in data]}, data)
        return {
            name: np.frombuffer(part, self.dtypes[name]).reshape(shape)
            for (name, shape), part in zip(answer["shapes"].items(), outputs, strict=True)
        }

    def microseconds(self, shapes: Shapes, repeats: int) -> float:
        """What one call takes on the GPU, by CUDA events around calls that follow each other."""
        answer, _ = self._ask({"time": shapes, "repeats": repeats})
        return float(answer["microseconds"])

    def share(self) -> SharedTensors:
        """From now on inputs and outputs lie in device memory that this process can map, and `run` is how it runs."""
        answer, _ = self._ask({"share": True})
        return SharedTensors(bytes.fromhex(answer.pop("handle")), **answer)

    def run(self, shapes: Shapes) -> Shapes:
        """Run on the shared inputs, which have these shapes; returns those of the outputs, which are there."""
        outputs: Shapes = self._ask({"run": shapes})[0]["shapes"]
        return outputs

    def _ask(self, request: dict[str, Any], data: Sequence[bytes] = ()) -> tuple[dict[str, Any], list[bytes]]:
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
            raise PlanError(f"{self.path}: {self._failure}{answer['error']}")
        return answer, [replies.read(size) for size in answer.get("sizes", [])]


def command(settings: TensorRtSettings, module: str, *arguments: Any) -> dict[str, Any]:
    """Arguments of Popen for a module of ours in the Python that has TensorRT."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    plugin = {PLUGIN_LIBRARY: str(settings.plugin)} if settings.plugin else {}
    return {
        "args": [str(settings.python), "-m", module, *map(str, arguments)],
        "env": {**os.environ, "PYTHONPATH": path, **plugin},
    }
