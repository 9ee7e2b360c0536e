"""The specialisations of cluster_linear.cu."""

from dataclasses import asdict, dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cu").resolve()
# wgmma exists on Hopper only.
ARCHITECTURE, CAPABILITY = "sm_90a", 9
STEP = 64


@dataclass(frozen=True)
class ClusterLinear:
    """The macros of the source, where they are documented."""

    N: int
    K: int
    ROWS: int
    GROUPS: int
    SPLIT: int
    STAGES: int
    DEPTH: int
    RESIDENT: int
    LAG: int = 1
    NORM: int = 0
    GATED: int = 0
    RESIDUAL: int = 0
    BIAS: int = 0
    FLOAT_OUT: int = 0
    WGMMA: int = 1
    RELAXED: int = 1
    AHEAD: int = 0

    @property
    def macros(self) -> dict[str, int]:
        return asdict(self)

    @property
    def threads(self) -> int:
        return 128 * self.GROUPS

    @property
    def steps(self) -> int:
        return self.K // self.SPLIT // STEP

    @property
    def blocks(self) -> int:
        return self.N * (1 + self.GATED) // (64 * self.GROUPS) * self.SPLIT

    @property
    def shared_bytes(self) -> int:
        """The staged operands, or the sums in their place; squares of x and the norm's weights."""
        height = 64 * self.GROUPS
        staged = 2 * STEP * (min(self.STAGES, self.steps) * height + min(self.LAG + 1, self.steps) * self.ROWS)
        return max(staged, 4 * self.ROWS * (height + 4)) + 4 * self.ROWS + 2 * STEP * self.steps
