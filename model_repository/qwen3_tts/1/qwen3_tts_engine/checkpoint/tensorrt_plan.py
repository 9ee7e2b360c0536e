"""Checks a TensorRT plan against this machine: it runs only on the GPU and TensorRT that built it."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import MANIFEST, PLAN, EngineFacts, Manifest

MAJORS = (8, 10, 11)
# Shape by input.
Shapes = dict[str, list[int]]
# Smallest, most common and largest shape by input.
Profile = dict[str, list[list[int]]]


def check_plan(folder: Path, manifest: Manifest, device: torch.device, needed: Sequence[Shapes]) -> None:
    """Check a model of the form tensorrt; other forms pass.

    Raises CheckpointError, naming file and differences, when the plan of `folder` does not support `device` or one of
    the `needed` shapes.
    """
    if manifest.form != "tensorrt":
        return
    path = folder / MANIFEST
    if not (folder / PLAN).is_file():
        raise CheckpointError(f"{folder / PLAN}: missing; `python -m export --form tensorrt` builds it on this GPU")
    if manifest.engine is None:
        raise CheckpointError(f"{path}: engine: missing; `python -m export --form tensorrt` writes it")
    if device.type != "cuda":
        raise CheckpointError(f"{path}: form is tensorrt, which requires a CUDA device, this model runs on {device}")
    gpu, tensorrt = torch.cuda.get_device_name(device), tensorrt_version(manifest.engine)
    if problems := differences(manifest.engine, gpu, tensorrt, needed):
        raise CheckpointError(f"{path}: {'; '.join(problems)}: build the plan on this machine")


def differences(engine: EngineFacts, gpu: str | None, tensorrt: str | None, needed: Sequence[Shapes]) -> list[str]:
    """Mismatches between a plan and the GPU, the TensorRT version (None if unknown) and the needed shapes."""
    problems = []
    if gpu is not None and engine.gpu != gpu:
        problems.append(f"engine.gpu is {engine.gpu}, this machine has {gpu}")
    if tensorrt is not None and _release(engine.version) != _release(tensorrt):
        problems.append(f"engine.version is {engine.version}, TensorRT here is {tensorrt}")
    for shapes in needed:
        if not any(_supports(profile, shapes) for profile in engine.profiles):
            inputs = ", ".join(f"{name} {shapes[name]}" for name in engine.profiles[0])
            problems.append(f"engine.profiles: none supports {inputs}")
    return problems


def _supports(profile: Profile, shapes: Shapes) -> bool:
    return all(
        all(low <= size <= high for low, size, high in zip(smallest, shapes[name], largest, strict=True))
        for name, (smallest, _, largest) in profile.items()
    )


def tensorrt_version(engine: EngineFacts) -> str | None:
    """Version of the installed TensorRT library, preferring the plan's major version; None without one."""
    own = int(engine.version.split(".")[0])
    for major in (own, *(other for other in MAJORS if other != own)):
        try:
            library = ctypes.CDLL(f"libnvinfer.so.{major}")
        except OSError:
            continue
        return _decode(library.getInferLibVersion())
    return None


def _decode(number: int) -> str:
    """101401 is 10.14.1; before version 10, 8600 is 8.6.0."""
    unit = 10000 if number >= 10000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def _release(version: str) -> list[str]:
    return version.split(".")[:3]
