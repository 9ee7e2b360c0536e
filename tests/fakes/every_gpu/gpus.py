"""The GPUs that all kernels compile for and fit, and the resources of a compiled kernel."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch

MAX_THREADS, MAX_THREAD_REGISTERS, REGISTERS = 1024, 255, 1 << 16
# Allocation granularity: registers of a thread, and warps, which four schedulers share evenly.
REGISTER_UNIT, WARP, SCHEDULERS = 8, 32, 4
# Blackwell's tensor memory, which Triton checks when it loads a kernel.
TENSOR_COLUMNS = 512


@dataclass(frozen=True)
class Gpu:
    """The fields have the names of torch.cuda.get_device_properties."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    shared_memory_per_block_optin: int
    like: str | None
    """A capability with the same limits and instructions: of what compiles for it, one form is compiled for this."""

    @property
    def capability(self) -> str:
        return f"{self.major}.{self.minor}"

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes torch.cuda describe this GPU as the current one."""
        described = {
            "is_available": True,
            "get_device_capability": (self.major, self.minor),
            "get_device_properties": self,
        }
        with ExitStack() as patches:
            for name, value in described.items():
                patches.enter_context(patch.object(torch.cuda, name, lambda *_, value=value: value))
            yield


def _gpu(name: str, capability: str, multiprocessors: int, kibibytes: int, *, like: str | None = None) -> Gpu:
    major, minor = map(int, capability.split("."))
    return Gpu(name, major, minor, multiprocessors, kibibytes * 1024, like)


# One for each capability. Shared memory per block is from the CUDA C++ Programming Guide, Compute Capabilities.
ALL = (
    _gpu("A100", "8.0", 108, 163),
    _gpu("A10", "8.6", 72, 99, like="8.9"),
    _gpu("Jetson AGX Orin", "8.7", 16, 163, like="8.0"),
    _gpu("L4", "8.9", 58, 99),
    _gpu("H200", "9.0", 132, 227),
    _gpu("B200", "10.0", 148, 227),
    _gpu("B300", "10.3", 148, 227, like="10.0"),
    _gpu("RTX 5090", "12.0", 170, 99),
)
GPUS = {gpu.capability: gpu for gpu in ALL}


@dataclass(frozen=True)
class Resources:
    """What a block takes; registers are per thread."""

    threads: int
    registers: int
    shared_bytes: int
    tensor_columns: int = 0

    def problems(self, gpu: Gpu) -> list[str]:
        """The limits of the GPU that the kernel exceeds."""
        warps = -(-self.threads // (WARP * SCHEDULERS)) * SCHEDULERS
        registers = -(-self.registers // REGISTER_UNIT) * REGISTER_UNIT * WARP * warps
        limits = {
            "bytes of shared memory": (self.shared_bytes, gpu.shared_memory_per_block_optin),
            "threads": (self.threads, MAX_THREADS),
            "registers of a thread": (self.registers, MAX_THREAD_REGISTERS),
            "registers": (registers, REGISTERS),
            "columns of tensor memory": (self.tensor_columns, TENSOR_COLUMNS),
        }
        return [f"{taken} {what} of {limit}" for what, (taken, limit) in limits.items() if taken > limit]
