"""An encoder for Triton's Python backend: a program of torch.export, or an ONNX graph for a CPU."""

from dataclasses import replace
from pathlib import Path

import torch

from encoder_program.program import CONTRACT, MODEL_FILE, Contract, EncoderProgram, Input, OnnxEncoder
from export.forms.graph import ONNX_RUNTIME, Run, Runtime, TracedModule
from export.tensorrt.process import Arrays

# model.py and its package, which the model folder requires beside the file.
CODE = Path(__file__).parents[1] / "models" / "python"


def make(graph: TracedModule, path: Path) -> None:
    """Writes the program, traced on the CPU for the graph's dynamic shapes, and its contract."""
    example = tuple(torch.from_numpy(array) for array in graph.example.values())
    dynamic = tuple(graph.dynamic[name] for name in graph.example)
    program = torch.export.export(graph.module, example, dynamic_shapes=dynamic)
    torch.export.save(program, path, extra_files={CONTRACT: contract(graph).to_json()})


def contract(graph: TracedModule) -> Contract:
    [output] = graph.outputs
    [profile] = graph.profiles
    inputs = []
    for name, array in graph.example.items():
        axes = graph.dynamic[name]
        limits = [(axes[i].min, axes[i].max) if i in axes else (size, size) for i, size in enumerate(array.shape)]
        smallest, largest = (list(sizes) for sizes in zip(*limits, strict=True))
        inputs.append(Input(name, array.dtype.name, smallest, largest))
    warm_up = [dict(zip(profile, shapes, strict=True)) for shapes in zip(*profile.values(), strict=True)]
    return Contract(inputs, output, warm_up)


def make_onnx(graph: TracedModule, path: Path) -> None:
    graph.write(path, {CONTRACT: contract(graph).to_json()})


def load(path: Path) -> Run:
    """Loads the program onto the GPU where there is one, as it is served."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    return run_of(EncoderProgram.load(path, device))


def run_of(program: EncoderProgram | OnnxEncoder) -> Run:
    def run(inputs: Arrays) -> Arrays:
        output = program({name: torch.from_numpy(array) for name, array in inputs.items()})
        return {program.contract.output: output.numpy()}

    return run


PROGRAM = Runtime("python", MODEL_FILE, None, make=make, load=load, code=CODE)
ONNX_PROGRAM = replace(ONNX_RUNTIME, make=make_onnx, load=lambda path: run_of(OnnxEncoder.load(path)), code=CODE)
