"""A TensorRT plan that runs in a process of its own (export.tensorrt.run)."""

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

from export.profiles import Shapes
from export.tensorrt.api import PLUGIN_LIBRARY

ROOT = Path(__file__).parents[2]
# Environment variable: the Python with TensorRT, if it is not this one.
TENSORRT_PYTHON = "QWEN3_TTS_TENSORRT_PYTHON"
Arrays = dict[str, NDArray[Any]]


class PlanError(RuntimeError):
    """TensorRT failed to build or run a plan; its own messages precede this one."""


@dataclass(frozen=True)
class TensorRtSettings:
    """The Python with TensorRT, optimisation level, timing cache, and the compiled plugin (export/plugin) if used."""

    python: Path = Path(sys.executable)
    level: int = 3
    cache: Path = Path.home() / ".cache" / "qwen3-tts-triton"
    plugin: Path | None = None


DEFAULTS = TensorRtSettings()


class PlanProcess:
    """The plan (graph.Run); casts inputs to its types. Every method raises PlanError."""

    def __init__(self, settings: TensorRtSettings, path: Path, failure: str = "") -> None:
        """`failure` prefixes TensorRT's error messages."""
        self.path = path
        self._failure = failure
        popen = command(settings, "export.tensorrt.run", path)
        self._process = subprocess.Popen(**popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        weakref.finalize(self, self._process.kill)
        loaded, _ = self._receive()
        self.dtypes = {name: np.dtype(dtype) for name, dtype in loaded["dtypes"].items()}
        self.dims: Shapes = loaded["dims"]
        """Dimensions for which the plan was built, -1 where dynamic."""

    def __call__(self, inputs: Arrays) -> Arrays:
        data = [array.astype(self.dtypes[name]).tobytes() for name, array in inputs.items()]
        shapes = {name: list(array.shape) for name, array in inputs.items()}
        reply, outputs = self._request({"shapes": shapes, "sizes": [len(part) for part in data]}, data)
        return {
            name: np.frombuffer(part, self.dtypes[name]).reshape(shape)
            for (name, shape), part in zip(reply["shapes"].items(), outputs, strict=True)
        }

    def microseconds(self, shapes: Shapes, repeats: int) -> float:
        """GPU time of one call, from CUDA events around back-to-back calls."""
        reply, _ = self._request({"time": shapes, "repeats": repeats})
        return float(reply["microseconds"])

    def _request(self, request: dict[str, Any], data: Sequence[bytes] = ()) -> tuple[dict[str, Any], list[bytes]]:
        requests = self._process.stdin
        assert requests is not None
        try:
            for part in (json.dumps(request).encode(), b"\n", *data):
                requests.write(part)
            requests.flush()
        except BrokenPipeError:
            pass  # _receive() raises for the missing reply
        return self._receive()

    def _receive(self) -> tuple[dict[str, Any], list[bytes]]:
        replies = self._process.stdout
        assert replies is not None
        line = replies.readline()
        if not line:
            raise PlanError(f"{self.path}: TensorRT ended with exit code {self._process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise PlanError(f"{self.path}: {self._failure}{reply['error']}")
        return reply, [replies.read(size) for size in reply.get("sizes", [])]


def command(settings: TensorRtSettings, module: str, *arguments: Any) -> dict[str, Any]:
    """Arguments of Popen for one of our modules in the Python with TensorRT."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    plugin = {PLUGIN_LIBRARY: str(settings.plugin)} if settings.plugin else {}
    return {
        "args": [str(settings.python), "-m", module, *map(str, arguments)],
        "env": {**os.environ, "PYTHONPATH": path, **plugin},
    }
