"""Whether a TensorRT plan fits this machine: it runs on the GPU and with the TensorRT that built it, nowhere else."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import MANIFEST, PLAN, EngineFacts, Manifest

MAJORS = (8, 10, 11)
# By input.
Shapes = dict[str, list[int]]
# Smallest, commonest and largest shape by input.
Profile = dict[str, list[list[int]]]


def check_plan(folder: Path, manifest: Manifest, device: torch.device, needed: Sequence[Shapes]) -> None:
    """Nothing for another form than a plan.

    Raises CheckpointError, naming file and what differs, when the plan of `folder` cannot serve on `device`, or not
    all of the `needed` shapes.
    """
    if manifest.form != "tensorrt":
        return
    path = folder / MANIFEST
    if not (folder / PLAN).is_file():
        raise CheckpointError(f"{folder / PLAN}: missing; `python -m export --form tensorrt` builds it on this GPU")
    if manifest.engine is None:
        raise CheckpointError(f"{path}: engine: missing; `python -m export --form tensorrt` writes it")
    if device.type != "cuda":
        raise CheckpointError(f"{path}: form is tensorrt, which needs a CUDA device, this model runs on {device}")
    gpu, tensorrt = torch.cuda.get_device_name(device), tensorrt_version(manifest.engine)
    if problems := differences(manifest.engine, gpu, tensorrt, needed):
        raise CheckpointError(f"{path}: {'; '.join(problems)}: build the plan on this machine")


def differences(engine: EngineFacts, gpu: str | None, tensorrt: str | None, needed: Sequence[Shapes]) -> list[str]:
    """What of a plan does not fit a GPU, a TensorRT and the shapes needed; None is for what is not known."""
    problems = []
    if gpu is not None and engine.gpu != gpu:
        problems.append(f"engine.gpu is {engine.gpu}, this machine has {gpu}")
    if tensorrt is not None and _release(engine.version) != _release(tensorrt):
        problems.append(f"engine.version is {engine.version}, TensorRT here is {tensorrt}")
    for shapes in needed:
        if not any(_takes(profile, shapes) for profile in engine.profiles):
            inputs = ", ".join(f"{name} {shapes[name]}" for name in engine.profiles[0])
            problems.append(f"engine.profiles: none takes {inputs}")
    return problems


def _takes(profile: Profile, shapes: Shapes) -> bool:
    return all(
        all(low <= size <= high for low, size, high in zip(smallest, shapes[name], largest, strict=True))
        for name, (smallest, _, largest) in profile.items()
    )


def tensorrt_version(engine: EngineFacts) -> str | None:
    """Of the library that a server on this machine loads, the plan's own major version first; None without one."""
    own = int(engine.version.split(".")[0])
    for major in (own, *(other for other in MAJORS if other != own)):
        try:
            library = ctypes.CDLL(f"libnvinfer.so.{major}")
        except OSError:
            continue
        return _decode(library.getInferLibVersion())
    return None


def _decode(number: int) -> str:
    """101401 is 10.14.1; before 10, 8600 was 8.6.0."""
    unit = 10000 if number >= 10000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def _release(version: str) -> list[str]:
    return version.split(".")[:3]
