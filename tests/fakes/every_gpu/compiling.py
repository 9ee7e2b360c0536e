"""Compiles the kernels of both models for a GPU. Runs in processes that do not interpret OpenAI Triton."""

from dataclasses import asdict
from typing import Any

from tests.fakes.every_gpu.gpus import GPUS, Gpu

# The fields of gpus.Resources or an error, by model and kernel, then by form.
Outcomes = dict[str, dict[str, dict[str, Any]]]


def compile_all(capability: str) -> Outcomes:
    # Not in the process that submits this, which may interpret kernels.
    from tests.fakes.every_gpu import codec, talker
    from tests.fakes.every_gpu.kernels import beyond, form, representatives

    gpu, outcomes = GPUS[capability], Outcomes()
    for model, kernels_of in (("talker", talker.kernels), ("codec", codec.kernels)):
        kernels = representatives(kernels_of(gpu))
        if gpu.like is not None:
            kernels = beyond(kernels_of(GPUS[gpu.like]), kernels)
        for kernel in kernels:
            outcomes.setdefault(f"{model}-{kernel.name}", {})[form(kernel)] = outcome(kernel, gpu)
    return outcomes


def outcome(kernel: Any, gpu: Gpu) -> dict[str, Any]:
    try:
        return asdict(kernel.compile(gpu))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
