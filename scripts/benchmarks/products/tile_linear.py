"""The specialisations of tile_linear.cu."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from qwen3_tts_engine.talker.kernels.linear import Linear

SOURCE = Path(__file__).with_name("tile_linear.cu")
# Inputs of a step.
STEP = 64
WIDTHS = (32, 64, 96, 128)
MAX_CLUSTER = 8
# Shared memory of a block, of 227 KB.
MAX_SHARED = 200 * 1024
MAX_STAGES = 8
# Of one H200: multiprocessors; bytes a microsecond from memory, from the second-level cache to all of them, and to one.
MULTIPROCESSORS = 132
MEMORY, CACHE, INGRESS = 4.3e6, 5.5e6, 110e3
# Of the exchange of sums, in microseconds.
EXCHANGE = 0.5


@dataclass(frozen=True)
class TileLinear(Linear):
    function: ClassVar[str] = "tile_linear"

    ROWS: int
    GROUPS: int
    SPLIT: int
    SHARED_X: int
    SHARED_W: int
    STAGES: int = 1

    @property
    def source(self) -> Path:
        return SOURCE

    @property
    def height(self) -> int:
        """Rows of weights of a block."""
        return 64 * self.GROUPS

    @property
    def outputs(self) -> int:
        """Of a block."""
        return self.height // (1 + self.GATED)

    @property
    def threads(self) -> int:
        return 128 * self.GROUPS + 32

    @property
    def cluster(self) -> int:
        return self.SPLIT * self.SHARED_X * self.SHARED_W

    @property
    def x_slice(self) -> int:
        """Rows of x of one copy."""
        return self.ROWS // self.SHARED_X

    @property
    def w_slice(self) -> int:
        """Rows of weights of one copy."""
        return self.outputs // self.SHARED_W

    @property
    def stage_bytes(self) -> int:
        return 2 * STEP * (self.height + self.ROWS)

    @property
    def shared_bytes(self) -> int:
        """The staged operands; sums and squares of other blocks; barriers."""
        received = 4 * (self.SPLIT - 1) * (self.ROWS // self.SPLIT) * (self.height + 4)
        return self.STAGES * self.stage_bytes + received + 16 * self.STAGES + 8

    def blocks(self, rows: int) -> int:
        clusters = self.N // (self.outputs * self.SHARED_X) * math.ceil(rows / (self.ROWS * self.SHARED_W))
        return clusters * self.cluster

    @property
    def is_valid(self) -> bool:
        """Whether the shape divides, as the source asserts, and fits."""
        divides = self.N % (self.outputs * self.SHARED_X) == 0 and self.K % (self.SPLIT * STEP) == 0
        whole = self.x_slice % 8 == self.w_slice % 8 == self.ROWS // self.SPLIT % 8 == 0
        own = self.ROWS // self.SPLIT * (self.height + 4) * 4 <= self.STAGES * self.stage_bytes
        return divides and whole and own and self.ROWS * 8 % (128 * self.GROUPS) == 0 and self.cluster <= MAX_CLUSTER

    def microseconds(self, rows: int) -> float:
        """A bound by the bytes that blocks read, each from the cache or from a block that shares it."""
        blocks, steps = self.blocks(rows), 2 * self.K // self.SPLIT
        waves = math.ceil(blocks / MULTIPROCESSORS)
        ingress = waves * steps * (self.height + self.ROWS) / INGRESS
        cache = blocks * steps * (self.height / self.SHARED_W + self.ROWS / self.SHARED_X) / CACHE
        memory = 2 * self.K * self.N * (1 + self.GATED) / MEMORY
        return max(ingress, cache, memory) + EXCHANGE * (self.SPLIT > 1)


def forms(outputs: int, inputs: int, rows: int, most: int, **flags: int) -> list[TileLinear]:
    """The `most` fastest by their bytes, for any number of rows."""
    made = [form for form in _all(outputs, inputs, rows, **flags) if form.is_valid]
    return sorted(made, key=lambda form: (form.microseconds(rows), form.cluster))[:most]


def _all(outputs: int, inputs: int, rows: int, **flags: int) -> Iterator[TileLinear]:
    for width in [width for width in WIDTHS if width >= min(rows, 64)]:
        for groups in (1, 2):
            for split in (1, 2, 4, 8):
                for shared_x in (1, 2, 4, 8):
                    for shared_w in (1, 2) if rows > width else (1,):
                        form = TileLinear(outputs, inputs, width, groups, split, shared_x, shared_w, **flags)
                        yield with_stages(form)


def with_stages(form: TileLinear) -> TileLinear:
    """As many as fit."""
    steps = max(1, form.K // form.SPLIT // STEP)
    made = [replace(form, STAGES=stages) for stages in range(1, min(steps, MAX_STAGES) + 1)]
    return [form for form in made if form.shared_bytes <= MAX_SHARED][-1]
