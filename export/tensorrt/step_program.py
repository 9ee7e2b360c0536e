"""The step as a program for the TensorRT plugin: kernels compiled for this GPU, and each shape's launches.

export/plugin/program.h defines the file format.
"""

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import triton

from code2wav_step.config import StepConfig
from code2wav_step.kernels.cuda_form import CudaForm, compile_form
from code2wav_step.weights import StepWeights
from export.tensorrt.launches import Address, Argument, Base, Constants, Launch, Recording, record

MAGIC = b"C2WSTEP2"
WARP = 32


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: threads and bytes of shared memory per block."""

    name: str
    cubin: bytes
    threads: int
    shared: int


@dataclass(frozen=True)
class Compiled:
    """A launch's kernel and the indices of its run-time arguments; the others are compiled in."""

    kernel: Kernel
    parameters: tuple[int, ...]


Compile = Callable[[Sequence[Launch]], list[Compiled]]


def compile_all(launches: Sequence[Launch]) -> list[Compiled]:
    """Compiles for the current GPU, equal kernels once."""
    with ThreadPoolExecutor(os.cpu_count()) as executor, triton.AsyncCompileMode(executor):
        for launch in launches:
            if not isinstance(launch.kernel, CudaForm):
                _warm_up(launch)
        forms = {launch.kernel for launch in launches if isinstance(launch.kernel, CudaForm)}
        list(executor.map(compile_form, forms))
    return [_build(launch) for launch in launches]


def write_program(
    weights: StepWeights, shapes: Iterable[tuple[int, int]], path: Path, compile_: Compile = compile_all
) -> None:
    """Writes the program for these (rows, frames); `weights` are FP16 on the CPU.

    Raises kernel_ops.KernelError if the kernels do not support this codec.
    """
    constants = Constants()
    recordings = [record(weights, constants, *shape) for shape in shapes]
    compiled = compile_([launch for recording in recordings for launch in recording.launches])
    kernels = {kernel: i for i, kernel in enumerate(dict.fromkeys(found.kernel for found in compiled))}
    with path.open("wb") as file:
        _write_header(file, weights.config, constants)
        _write_kernels(file, list(kernels))
        file.write(struct.pack("<I", len(recordings)))
        following = iter(compiled)
        for recording in recordings:
            _write_recording(file, recording, [next(following) for _ in recording.launches], kernels)


def _build(launch: Launch) -> Compiled:
    form = launch.kernel
    if not isinstance(form, CudaForm):
        return _compiled(_warm_up(launch))
    cubin = compile_form(form)
    return Compiled(Kernel(form.function, cubin, form.threads, form.shared_bytes), tuple(range(len(launch.arguments))))


def _warm_up(launch: Launch) -> Any:
    # A dtype stands for an aligned pointer of that type.
    arguments = [argument.dtype if isinstance(argument, Address) else argument for argument in launch.arguments]
    return launch.kernel.warmup(*arguments, grid=launch.grid, **launch.options)


def _compiled(kernel: Any) -> Compiled:
    metadata = kernel.metadata
    assert metadata.num_ctas == 1
    assert not metadata.global_scratch_size
    parameters = tuple(i for i, kind in enumerate(kernel.src.signature.values()) if kind != "constexpr")
    return Compiled(Kernel(metadata.name, kernel.asm["cubin"], metadata.num_warps * WARP, metadata.shared), parameters)


def _write_header(file: BinaryIO, config: StepConfig, constants: Constants) -> None:
    contract = config.contract
    sizes = (config.samples_per_frame, contract.num_rows, contract.public_rows, config.state_size)
    file.write(MAGIC + struct.pack("<IIIQQ", *sizes, constants.size))
    file.writelines(constants.blocks())


def _write_kernels(file: BinaryIO, kernels: Sequence[Kernel]) -> None:
    file.write(struct.pack("<I", len(kernels)))
    for kernel in kernels:
        for data in (kernel.name.encode(), kernel.cubin):
            file.write(struct.pack("<I", len(data)) + data)
        file.write(struct.pack("<II", kernel.threads, kernel.shared))


def _write_recording(
    file: BinaryIO, recording: Recording, compiled: Sequence[Compiled], kernels: dict[Kernel, int]
) -> None:
    launches = recording.launches
    file.write(struct.pack("<IIQI", recording.rows, recording.frames, recording.workspace, len(launches)))
    for launch, found in zip(launches, compiled, strict=True):
        grid = (*launch.grid, 1, 1)[:3]
        file.write(struct.pack("<IIIII", kernels[found.kernel], *grid, len(found.parameters)))
        file.writelines(_argument(launch.arguments[i]) for i in found.parameters)


def _argument(argument: Argument) -> bytes:
    if isinstance(argument, Address):
        return struct.pack("<Bq", argument.base, argument.offset)
    if isinstance(argument, float):  # in the low four of eight bytes
        return struct.pack("<Bfi", Base.NUMBER, argument, 0)
    return struct.pack("<Bq", Base.NUMBER, argument or 0)  # None is a null pointer
