"""code2wav as an ONNX graph, for ONNX Runtime and as the source of a TensorRT plan."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.export import Dim

from export.agreement import Agreement
from export.forms.form import Form
from export.forms.graph import ONNX_RUNTIME, OnnxGraph, Run, Runtime
from export.forms.program_form import ONNX_PROGRAM
from export.forms.python_form import step_config
from export.modules.codec import CodecStep
from export.profiles import Profile, profile
from qwen3_tts_engine.checkpoint.manifest import EngineFacts
from qwen3_tts_engine.codec.contract import (
    CHUNK_FRAMES,
    CODES,
    HISTORY,
    MAX_BATCH,
    MAX_FRAMES,
    STATE,
    STATE_OUT,
    WAVEFORM,
    input_shapes,
)

# Batch size that engines are tuned for.
COMMON_BATCH = 32
NUMPY = {torch.float32: np.float32, torch.float16: np.float16}


@dataclass(frozen=True)
class OnnxStep:
    """A loaded graph in FP32 as a step (verify.Step)."""

    run: Run

    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        inputs = {CODES: codes, STATE: state, HISTORY: history}
        outputs = self.run({name: tensor.cpu().numpy() for name, tensor in inputs.items()})
        return torch.from_numpy(outputs[WAVEFORM]), torch.from_numpy(outputs[STATE_OUT])


def graph_form(runtime: Runtime, **options: Any) -> Form:
    """code2wav's form for a runtime; `options` are the remaining fields of Form."""
    return Form(
        name=runtime.name,
        filename=runtime.filename,
        opset=runtime.opset,
        build=partial(_build, runtime),
        load=lambda path: OnnxStep(runtime.load(path)),
        **options,
    )


def graph(step: CodecStep) -> OnnxGraph:
    """The step for any batch and any chunk length."""
    shapes = input_shapes(2, 3, step.state_size)
    dtypes = {CODES: np.int32, STATE: NUMPY[step.dtype], HISTORY: np.int32}
    rows, frames = Dim("batch", min=1, max=MAX_BATCH), Dim("frames", min=1, max=MAX_FRAMES)
    return OnnxGraph(
        step,
        example={name: np.zeros(shape, dtypes[name]) for name, shape in shapes.items()},
        outputs=[WAVEFORM, STATE_OUT],
        dynamic={CODES: {0: rows, 1: frames}, STATE: {0: rows}, HISTORY: {0: rows}},
        profiles=plan_profiles(step.state_size),
    )


def plan_profiles(state_size: int) -> list[Profile]:
    """One for each verified chunk length: a plan rejects all others."""
    batches = (1, COMMON_BATCH, MAX_BATCH)
    return [profile(*(input_shapes(rows, frames, state_size) for rows in batches)) for frames in CHUNK_FRAMES]


def _build(runtime: Runtime, step: CodecStep, path: Path) -> EngineFacts | None:
    return runtime.make(graph(step), path)


def _write(graph: OnnxGraph, path: Path) -> None:
    step = cast(CodecStep, graph.module)
    graph.write(path, step_config(step.config).to_metadata())


ONNX = graph_form(
    replace(ONNX_RUNTIME, make=_write),
    encoders=ONNX_PROGRAM,
    state_dtype="FP32",
    limit=Agreement(max_error=1e-3, snr_db=60.0),
)
