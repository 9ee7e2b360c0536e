"""code2wav as a TensorRT plan, for Triton's TensorRT backend.

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
import torch

from export import onnx_form
from export.codec import CodecStep
from export.form import Form
from export.onnx_opset import OPSET, to_opset_17
from export.verify import CASES, LONG_UTTERANCE, Agreement, Array
from qwen3_tts_engine.code2wav import CODES, HISTORY, MAX_BATCH, MAX_FRAMES, STATE, STATE_OUT, WAVEFORM
from qwen3_tts_engine.manifest import PLAN, EngineFacts

ROOT = Path(__file__).parents[1]
# What the builder tunes for (dynamic rows and frames share one profile, since every further one doubles the build).
COMMON_BATCH, COMMON_FRAMES = 32, 4
# (batch, frames) of the summary.
TIMED = ((1, 1), (1, 4), (8, 4), (64, 4))
REPEATS = 20
DTYPES: dict[str, type[np.generic]] = {WAVEFORM: np.float32, STATE_OUT: np.float16}


class PlanError(RuntimeError):
    """TensorRT did not build or run a plan; its own messages come before this one."""


@dataclass(frozen=True)
class TensorRtSettings:
    """Which TensorRT builds, and how long it may search."""

    python: Path = Path(sys.executable)
    level: int = 3
    cache: Path = Path.home() / ".cache" / "qwen3-tts-triton"


DEFAULTS = TensorRtSettings()


def tensorrt_form(settings: TensorRtSettings) -> Form:
    return Form(
        name="tensorrt",
        filename=PLAN,
        state_dtype="FP16",
        opset=OPSET,
        limit=Agreement(max_error=0.1, snr_db=30.0),
        build=partial(build, settings),
        load=partial(PlanProcess, settings),
        weights_dtype=torch.float16,
        cases=(*CASES, (MAX_BATCH, COMMON_FRAMES), (MAX_BATCH, MAX_FRAMES)),
        utterance=LONG_UTTERANCE,
        timings=timings,
    )


def build(settings: TensorRtSettings, step: CodecStep, path: Path) -> EngineFacts:
    """Build the plan of an FP16 step at `path`. Raises PlanError."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "code2wav.onnx"
        onnx_form.build(step, graph)
        to_opset_17(graph)
        shapes = profile(step.state_size)
        options = ["--profile", json.dumps(shapes), "--level", str(settings.level), "--cache", str(settings.cache)]
        command = _command(settings, "export.tensorrt_build", graph, path, *options)
        result = _say(command)
    return EngineFacts.model_validate({**json.loads(result), "profile": shapes})


def profile(state_size: int) -> dict[str, list[list[int]]]:
    """The smallest, the commonest and the largest shape of each input."""
    sizes = ((1, 1), (COMMON_BATCH, COMMON_FRAMES), (MAX_BATCH, MAX_FRAMES))
    return {
        CODES: [[rows, frames, 16] for rows, frames in sizes],
        STATE: [[rows, state_size] for rows, _ in sizes],
        HISTORY: [[rows, 1] for rows, _ in sizes],
    }


class PlanProcess:
    """A plan that runs in a process of its own; call it as a step, with FP32 states. Raises PlanError."""

    def __init__(self, settings: TensorRtSettings, path: Path) -> None:
        self.path = path
        command = _command(settings, "export.tensorrt_run", path)
        self._process = subprocess.Popen(**command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        weakref.finalize(self, self._process.kill)
        self._answer()

    def __call__(self, codes: Array, state: Array, history: Array) -> tuple[Array, Array]:
        inputs: dict[str, Array] = {
            CODES: codes.astype(np.int32),
            STATE: state.astype(np.float16),
            HISTORY: history.astype(np.int32),
        }
        data = [np.ascontiguousarray(array).tobytes() for array in inputs.values()]
        shapes = {name: list(array.shape) for name, array in inputs.items()}
        answer, outputs = self._ask({"shapes": shapes, "sizes": [len(part) for part in data]}, data)
        arrays: dict[str, Array] = {
            name: np.frombuffer(part, DTYPES[name]).reshape(shape)
            for (name, shape), part in zip(answer["shapes"].items(), outputs, strict=True)
        }
        return arrays[WAVEFORM], arrays[STATE_OUT].astype(np.float32)

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


def timings(step: Any, state_size: int) -> list[str]:
    """A line for each shape of TIMED: what the loaded plan takes of the GPU."""
    lines = []
    for rows, frames in TIMED:
        shapes = {CODES: [rows, frames, 16], STATE: [rows, state_size], HISTORY: [rows, 1]}
        microseconds = step.microseconds(shapes, REPEATS)
        each = microseconds / rows / frames
        lines.append(f"batch {rows} x {frames} frames: {microseconds / 1000:.2f} ms, {each:.0f} us per frame")
    return lines


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
