"""What the kernels for matrix products compute."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class Linear(ABC):
    """The macros that the sources of products share; they are documented there."""

    function: ClassVar[str]
    """Of the source of that name."""

    N: int
    K: int
    NORM: int = field(default=0, kw_only=True)
    GATED: int = field(default=0, kw_only=True)
    RESIDUAL: int = field(default=0, kw_only=True)
    BIAS: int = field(default=0, kw_only=True)
    FLOAT_OUT: int = field(default=0, kw_only=True)

    @property
    def source(self) -> str:
        return f"{self.function}.cu"

    @property
    def macros(self) -> dict[str, int]:
        return asdict(self)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return 1

    @property
    @abstractmethod
    def threads(self) -> int:
        """Of a block."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Of a block."""
