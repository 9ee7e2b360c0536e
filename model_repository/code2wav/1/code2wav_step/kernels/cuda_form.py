"""What a specialisation of a CUDA source provides."""

from collections.abc import Hashable
from typing import Protocol, runtime_checkable


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
