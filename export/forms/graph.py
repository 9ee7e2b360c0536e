"""A PyTorch module as an ONNX graph, and the runtimes that turn it into a served file."""

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from export.profiles import Profile
from export.tensorrt.process import Arrays
from qwen3_tts_engine.checkpoint.manifest import EngineFacts, FormName

# Since 1.29 ONNX Runtime reports events to Microsoft unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

OPSET = 18
# Inputs to outputs, by name.
Run = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class TracedModule:
    """A module that PyTorch's exporter traces, with the names of its inputs and outputs and its supported shapes."""

    module: nn.Module
    example: Arrays
    """Inputs in order. The exporter treats a dimension of 1 as constant, so dynamic ones are larger."""
    outputs: list[str]
    dynamic: dict[str, dict[int, Any]]
    """The torch.export.Dim of each dynamic dimension, by input and axis."""
    profiles: list[Profile]
    """Used by engines that are built for specific shapes."""

    def write(self, path: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Writes the module as ONNX, with `metadata` for whoever loads the file."""
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # operators of absent packages
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                self.module,
                tuple(torch.from_numpy(array) for array in self.example.values()),
                dynamo=True,
                opset_version=OPSET,
                input_names=list(self.example),
                output_names=self.outputs,
                dynamic_shapes=self.dynamic,
                external_data=False,
                verbose=False,
            )
        assert program is not None
        program.save(path)
        if metadata:
            model = onnx.load(path)
            onnx.helper.set_model_props(model, dict(metadata))
            onnx.save(model, path)


@dataclass(frozen=True)
class Runtime:
    """A server's runtime for a graph: how to make its file, and how to load it for verification."""

    name: FormName
    filename: str
    opset: int | None
    """None for a runtime without ONNX."""
    make: Callable[[TracedModule, Path], EngineFacts | None]
    load: Callable[[Path], Run]
    code: Path | None = None
    """Folder of files that a model folder requires beside that of the graph."""


def _load(path: Path) -> Run:
    """Loads the file on the CPU."""
    options = onnxruntime.SessionOptions()
    # Threads that spin would take the cores of PyTorch, which runs in turn with the graph.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        return dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))

    return run


ONNX_RUNTIME = Runtime("onnx", "model.onnx", OPSET, make=TracedModule.write, load=_load)
