"""What a specialisation of a CUDA source provides, and its kernel; all of them are for Hopper."""

from collections.abc import Hashable
from functools import cache
from typing import Any, Protocol, runtime_checkable

from code2wav_step.kernels.kernel_path import HOPPER


@runtime_checkable
class CudaForm(Hashable, Protocol):
    """A function of a source in this folder with its macros, threads per block, and shared memory per block."""

    @property
    def source(self) -> str: ...

    @property
    def function(self) -> str: ...

    @property
    def macros(self) -> dict[str, int]: ...

    @property
    def threads(self) -> int: ...

    @property
    def shared_bytes(self) -> int: ...


def compile_form(form: CudaForm) -> bytes:
    """The form as a cubin for the current GPU, from the cache on disk where it has one; it does afterwards."""
    # Imported here: the bindings are not installed where there is no GPU.
    from code2wav_step.kernels.cuda_module import architecture, compiled

    return compiled(form.source, form.macros, architecture())


@cache
def cuda_kernel(form: CudaForm) -> Any:
    """The form's cuda_module.CudaKernel."""
    from code2wav_step.kernels.cuda_module import CudaKernel

    return CudaKernel(
        form.source, form.function, form.macros, form.threads, form.shared_bytes, overlaps=HOPPER.overlaps
    )
