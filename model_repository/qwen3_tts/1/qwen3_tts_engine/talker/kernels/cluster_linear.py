"""The specialisations of cluster_linear.cu."""

from dataclasses import dataclass
from typing import ClassVar

from qwen3_tts_engine.talker.kernels.linear import Linear

# Inputs of a step of the products.
STEP = 64
WIDTHS = (32, 64, 96, 128)
# Shared memory of a block. Two blocks of PAIRED bytes fit a multiprocessor of Hopper: a kernel can load its weights
# while the previous one ends.
PAIRED, ALONE = 113 * 1024, 170 * 1024
MIN_STAGES = 3
# So few blocks occupy at most half of the 132 multiprocessors: each may have the memory of one.
FEW_BLOCKS = 66


@dataclass(frozen=True)
class ClusterLinear(Linear):
    function: ClassVar[str] = "cluster_linear"

    ROWS: int
    GROUPS: int
    SPLIT: int
    STAGES: int

    @property
    def macros(self) -> dict[str, int]:
        return super().macros | {"RESIDENT": self.resident}

    @property
    def threads(self) -> int:
        return 128 * self.GROUPS

    @property
    def rows(self) -> int:
        return self.ROWS

    @property
    def cluster(self) -> int:
        return self.SPLIT

    @property
    def blocks(self) -> int:
        return self.N // self.outputs * self.SPLIT

    @property
    def outputs(self) -> int:
        """Of a block."""
        return 64 * self.GROUPS // (1 + self.GATED)

    @property
    def shared_bytes(self) -> int:
        """The staged operands; sums and squares of other blocks; a barrier."""
        height = 64 * self.GROUPS
        received = 4 * (self.SPLIT - 1) * (self.ROWS // self.SPLIT) * (height + 4)
        return 2 * STEP * self.STAGES * (height + self.ROWS) + received + 16

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor for which the compiler limits registers."""
        return {1: 3, 2: 2, 4: 1}[self.GROUPS]


def divides(outputs: int, inputs: int, *, gated: bool) -> bool:
    """Whether any tile divides the product; all products of the released checkpoints do."""
    groups, split = tile(outputs, inputs, gated=gated)
    return outputs * (1 + gated) % (64 * groups) == 0 and inputs % (split * STEP) == 0


def cluster_linear(outputs: int, inputs: int, rows: int, **flags: int) -> ClusterLinear:
    """The form for up to 128 `rows`, with the tile that was fastest for most products (measured on an H200)."""
    groups, split = tile(outputs, inputs, gated=bool(flags.get("GATED")))
    form = with_stages(outputs, inputs, rows, groups, split, PAIRED, **flags)
    return form if form.blocks > FEW_BLOCKS else with_stages(outputs, inputs, rows, groups, split, ALONE, **flags)


def tile(outputs: int, inputs: int, *, gated: bool) -> tuple[int, int]:
    """GROUPS and SPLIT: about as many blocks as multiprocessors, and few passes over the rows."""
    height = outputs * (1 + gated)
    return 2 if height >= 8192 else 1, 2 if height >= 4096 or inputs <= 1024 else 4


def with_stages(
    outputs: int, inputs: int, rows: int, groups: int, split: int, shared: int, **flags: int
) -> ClusterLinear:
    """As many stages as fit `shared` bytes, but no fewer than three."""
    width, steps = next(width for width in WIDTHS if rows <= width), inputs // split // STEP
    made = [
        ClusterLinear(outputs, inputs, width, groups, split, stages, **flags)
        for stages in range(min(steps, MIN_STAGES), steps + 1)
    ]
    return next((form for form in reversed(made) if form.shared_bytes <= shared), made[0])
