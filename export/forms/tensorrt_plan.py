"""A graph, or a program of the codec step, as a TensorRT plan for Triton's TensorRT backend.

TensorRT runs in processes of its own (export.tensorrt.build and .run): it may be in another Python than PyTorch, and
after a crash the message names the plan.
"""

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from export.forms.graph import Runtime, TracedModule
from export.forms.onnx_opset import OPSET, to_opset_17
from export.profiles import Profile
from export.tensorrt.process import PlanError, PlanProcess, TensorRtSettings, command
from qwen3_tts_engine.checkpoint.manifest import PLAN, EngineFacts

# Prefix of TensorRT's errors for a plan that it cannot run.
UNVERIFIED = "cannot be verified, so it is not kept: "


def tensorrt(settings: TensorRtSettings) -> Runtime:
    load = partial(PlanProcess, settings, failure=UNVERIFIED)
    return Runtime("tensorrt", PLAN, OPSET, make=partial(build, settings), load=load)


def build(settings: TensorRtSettings, graph: TracedModule, path: Path) -> EngineFacts:
    """Builds the graph's plan at `path`. Raises PlanError."""
    with tempfile.TemporaryDirectory() as folder:
        onnx = Path(folder) / "graph.onnx"
        graph.write(onnx)
        to_opset_17(onnx)
        return build_from(settings, onnx, graph.profiles, path)


def build_from(settings: TensorRtSettings, source: Path, profiles: list[Profile], path: Path) -> EngineFacts:
    """Builds the plan of an ONNX file or a program (export.tensorrt.build). Raises PlanError."""
    options = ["--profiles", json.dumps(profiles), "--level", str(settings.level), "--cache", str(settings.cache)]
    result = _run(command(settings, "export.tensorrt.build", source, path, *options))
    return EngineFacts.model_validate({**json.loads(result), "profiles": profiles})


def _run(popen: dict[str, Any]) -> str:
    """Runs a process to its end, forwarding its messages; returns its output."""
    process = subprocess.Popen(**popen, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    messages, last = process.stderr, ""
    assert messages is not None
    for line in messages:
        last = line.strip() or last
        # Printed through Python's own stream, which the progress display redirects.
        print(f"  {line.rstrip()}", file=sys.stderr)
    output, _ = process.communicate()
    if process.returncode:
        raise PlanError(last or f"TensorRT ended with exit code {process.returncode}")
    return str(output)
