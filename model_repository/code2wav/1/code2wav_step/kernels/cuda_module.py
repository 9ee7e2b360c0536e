"""Compiles CUDA sources, those of this folder by name, on first use, per set of macros, with a cache on disk."""

import ctypes
import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver, nvrtc
from torch import Tensor

FOLDER = Path(__file__).parent
# A compute capability of which machine code is compiled with what later GPUs lack (wgmma).
WGMMA = 90


class KernelError(RuntimeError):
    """A kernel could not be built or launched; the message includes the compiler's or the driver's error."""


class CudaKernel:
    """One function of one source. Launches on the current stream, also during graph capture."""

    def __init__(
        self,
        source: str,
        function: str,
        macros: Mapping[str, int],
        threads: int,
        shared_bytes: int = 0,
        cluster: int = 1,
        carveout: int | None = None,
        *,
        overlaps: bool,
    ) -> None:
        """`cluster` consecutive blocks in x form a cluster, from Hopper on; `overlaps` as in kernel_path.KernelPath.

        `carveout` is the percentage of a multiprocessor's cache that is shared memory, else what its blocks need.
        """
        self._module = _check(driver.cuModuleLoadData(compiled(source, macros, architecture())))
        self._function = _check(driver.cuModuleGetFunction(self._module, function.encode()))
        self._launch = driver.CUlaunchConfig()
        self._launch.blockDimX, self._launch.blockDimY, self._launch.blockDimZ = threads, 1, 1
        self._launch.gridDimZ, self._launch.sharedMemBytes = 1, shared_bytes
        if shared_bytes:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver.cuFuncSetAttribute(self._function, limit, shared_bytes))
        if carveout is not None:
            preferred = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            _check(driver.cuFuncSetAttribute(self._function, preferred, carveout))
        self._launch.attrs = list(_attributes(cluster, overlaps))
        self._launch.numAttrs = len(self._launch.attrs)

    def __call__(self, grid: tuple[int, int], *arguments: Tensor | int | float | ctypes.Structure | None) -> None:
        """Passes tensors as pointers (None as null), int and float as 32-bit numbers, structures whole."""
        values, types = zip(*(_argument(argument) for argument in arguments), strict=True)
        self._launch.gridDimX, self._launch.gridDimY = grid
        self._launch.hStream = torch.cuda.current_stream().cuda_stream
        _check(driver.cuLaunchKernelEx(self._launch, self._function, (values, types), 0))


def _attributes(cluster: int, overlaps: bool) -> Iterator[driver.CUlaunchAttribute]:
    if overlaps:
        overlap = driver.CUlaunchAttribute()
        overlap.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        overlap.value.programmaticStreamSerializationAllowed = 1
        yield overlap
    if cluster > 1:
        blocks = driver.CUlaunchAttribute()
        blocks.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = blocks.value.clusterDim
        size.x, size.y, size.z = cluster, 1, 1
        yield blocks


def _argument(value: Tensor | int | float | ctypes.Structure | None) -> tuple[Any, type | None]:
    if isinstance(value, ctypes.Structure):
        return value, None
    if value is None or isinstance(value, Tensor):
        return 0 if value is None else value.data_ptr(), ctypes.c_void_p
    return value, ctypes.c_int if isinstance(value, int) else ctypes.c_float


@cache
def architecture() -> str:
    """What kernels of the current GPU are compiled for, as the compiler names it."""
    major, minor = torch.cuda.get_device_capability()
    return compile_target(10 * major + minor, _check(nvrtc.nvrtcGetSupportedArchs()))


def compile_target(capability: int, known: Sequence[int]) -> str:
    """Machine code for a capability (90 is 9.0) that the compiler knows; else PTX, which the driver compiles."""
    if capability in known:
        return f"sm_{capability}{'a' if capability == WGMMA else ''}"
    return f"compute_{max(older for older in known if older < capability)}"


def compiled(name: str, macros: Mapping[str, int], architecture: str) -> bytes:
    """The source, with the headers beside it, as a cubin or PTX, from the cache on disk where it has it."""
    path = FOLDER / name
    source, headers = path.read_bytes(), _headers(path.parent)
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--use_fast_math"]
    options += [f"-D{macro}={value}" for macro, value in macros.items()]
    digest = hashlib.sha256(source + b"".join(headers.values()) + " ".join(options).encode()).hexdigest()
    cubin = _cache_folder() / f"{path.stem}-{digest[:24]}.cubin"
    if not cubin.is_file():
        cubin.parent.mkdir(parents=True, exist_ok=True)
        # Write and rename, since another process may be reading. Processes of several containers can have the same id.
        part = cubin.with_suffix(f".{uuid.uuid4().hex}")
        part.write_bytes(_compile(path.name, source, headers, options, as_ptx=architecture.startswith("compute")))
        part.replace(cubin)
    return cubin.read_bytes()


def _headers(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.cuh"))}


def _compile(
    name: str, source: bytes, headers: Mapping[str, bytes], options: Sequence[str], *, as_ptx: bool = False
) -> bytes:
    names = [header.encode() for header in headers]
    program = _check(nvrtc.nvrtcCreateProgram(source, name.encode(), len(names), list(headers.values()), names))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _check(nvrtc.nvrtcGetProgramLogSize(program))
        _check(nvrtc.nvrtcGetProgramLog(program, log))
        raise KernelError(f"{name} does not compile with {' '.join(options)}: {log.decode()}")
    size, copy = (
        (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX) if as_ptx else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    )
    binary = b" " * _check(size(program))
    _check(copy(program, binary))
    return binary


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "qwen3_tts" / "kernels"


def _check(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise KernelError(f"CUDA: {status}")
    return values[0] if values else None
