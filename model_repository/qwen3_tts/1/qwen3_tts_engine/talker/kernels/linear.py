"""What the kernels for matrix products compute."""

from dataclasses import asdict, dataclass, field
from typing import ClassVar

# Threads of a warp.
LANES = 32


@dataclass(frozen=True)
class Linear:
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
