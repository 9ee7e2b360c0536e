"""Specialisations of kernels as the models launch them, and their compilation without a GPU."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from cuda.bindings import nvrtc
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from qwen3_tts_engine.talker.kernels.cuda_module import compile_target, compiled
from tests.fakes.every_gpu.gpus import WARP, Gpu, Resources

# From this major capability on, a cubin's shared memory includes what the system reserves, which no limit counts.
RESERVED_FROM, RESERVED_BYTES = 9, 1024
USAGE = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+)")
# Constants and optional tensors that leave the resources of a kernel's blocks alike: sizes of layers, and epilogues.
SIZES = {
    "product_kernel": {"OUTPUTS", "CHANNELS", "DILATION"},
    "skinny_linear": {"N"},
    "skinny_product": {"OUTPUTS"},
    "tile_linear": {"N", "K"},
    "unit_kernel": {"DILATION"},
}
EPILOGUES = {
    "block_linear_kernel": {"RESIDUAL", "BIAS", "FLOAT_OUT", "PARTS", "bias", "squares", "sums"},
    "product_kernel": {"GELU", "bias", "residual", "alpha", "inverse_beta", "out", "active"},
    "skinny_product": {"GELU"},
    "tile_linear": {"NORM", "RESIDUAL", "BIAS", "FLOAT_OUT"},
    "unit_kernel": {"out"},
}


@dataclass(frozen=True)
class CudaKernel:
    """A function of a source; `values` are its macros."""

    source: Path
    name: str
    values: Mapping[str, Any]
    threads: int
    shared_bytes: int

    def compile(self, gpu: Gpu) -> Resources:
        """Raises cuda_module.KernelError."""
        _, known = nvrtc.nvrtcGetSupportedArchs()
        architecture = compile_target(10 * gpu.major + gpu.minor, known)
        registers, static_bytes = _usage(compiled(str(self.source), self.values, architecture), self.name, gpu)
        return Resources(self.threads, registers, self.shared_bytes + static_bytes)


@dataclass(frozen=True)
class TritonKernel:
    """A function with its options; `arguments` has dtypes in place of tensors."""

    function: JITFunction
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    @property
    def values(self) -> Mapping[str, Any]:
        """The options, and the tensors that are absent."""
        arguments = zip(self.function.arg_names, self.arguments, strict=False)
        return {**self.options, **{name: None for name, argument in arguments if argument is None}}

    def compile(self, gpu: Gpu) -> Resources:
        """Raises Triton's errors."""
        triton.runtime.driver.set_active(_Target(gpu))
        kernel = self.function.warmup(*self.arguments, grid=(1,), **self.options)
        registers, static_bytes = _usage(kernel.asm["cubin"], kernel.metadata.name, gpu)
        shared_bytes = kernel.metadata.shared + static_bytes
        return Resources(kernel.metadata.num_warps * WARP, registers, shared_bytes, kernel.metadata.tmem_size or 0)


Kernel = CudaKernel | TritonKernel
# A kernel's name and some of its values.
Part = tuple[str, frozenset[tuple[str, Any]]]


def form(kernel: Kernel) -> str:
    return " ".join(f"{name}={value}" for name, value in kernel.values.items())


def representatives(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """Kernels that cover all forms of blocks and all epilogues, but not all pairs of them."""
    seen: set[Part] = set()
    for kernel in kernels:
        parts = {blocks(kernel), _epilogue(kernel)}
        if not parts <= seen:
            yield kernel
        seen |= parts


def beyond(others: Iterable[Kernel], kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """One form of each function, and the forms of blocks that `others` lack."""
    seen: set[str] = set()
    known = set(map(blocks, others))
    for kernel in kernels:
        if kernel.name not in seen or blocks(kernel) not in known:
            yield kernel
        seen.add(kernel.name)


def blocks(kernel: Kernel) -> Part:
    left_out = SIZES.get(kernel.name, set()) | EPILOGUES.get(kernel.name, set())
    return kernel.name, frozenset(item for item in kernel.values.items() if item[0] not in left_out)


def _epilogue(kernel: Kernel) -> Part:
    epilogue = EPILOGUES.get(kernel.name, set())
    return f"epilogue of {kernel.name}", frozenset(item for item in kernel.values.items() if item[0] in epilogue)


class _Target:
    """A driver that names the target of compilation and launches nothing."""

    def __init__(self, gpu: Gpu) -> None:
        self._capability = 10 * gpu.major + gpu.minor

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, WARP)

    def get_current_device(self) -> int:
        # Triton keeps compiled kernels by device.
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def recorded_triton(record: Callable[[TritonKernel], None]) -> Iterator[None]:
    """Records launches instead of running them."""

    def run(function: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        record(triton_kernel(function, arguments, options))

    with patch.object(JITFunction, "run", run):
        yield


def triton_kernel(function: JITFunction, arguments: tuple[Any, ...], options: dict[str, Any]) -> TritonKernel:
    """A tensor's dtype stands for an aligned pointer."""
    types = tuple(one.dtype if isinstance(one, torch.Tensor) else one for one in arguments)
    return TritonKernel(function, types, options)


def _usage(cubin: bytes, function: str, gpu: Gpu) -> tuple[int, int]:
    """Registers per thread, and shared memory per block that the kernel declares."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_cuobjdump(), "-res-usage", file.name]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [(registers, shared)] = [map(int, found) for name, *found in USAGE.findall(output) if name == function]
    return registers, max(0, shared - (RESERVED_BYTES if gpu.major >= RESERVED_FROM else 0))


@cache
def _cuobjdump() -> str:
    return str(triton.knobs.nvidia.cuobjdump.path)
