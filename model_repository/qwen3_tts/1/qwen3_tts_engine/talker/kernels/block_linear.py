"""y = x @ w.T for more rows than skinny_linear.cu takes, on any GPU: tensor cores as OpenAI Triton uses them."""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from qwen3_tts_engine.talker.kernels.linear import Linear, by_rows

# Rows of x of a block, by rows, beyond these 128; a block multiplies them by OUTPUTS or WIDE_OUTPUTS rows of weights.
ROWS, MOST_ROWS = {64: 32, 256: 64}, 128
OUTPUTS, WIDE_OUTPUTS, WIDE_FROM_ROWS, WIDE_FROM_OUTPUTS = 64, 128, 513, 2048
# Blocks for each multiprocessor up to which a product is split by its inputs, and those for inputs of more than
# LONG_INPUTS; the fewest inputs of a block. Fastest for 1.7B on one H200, rows 24 to 256 (docs/gpu.md).
SPLIT_UP_TO, SPLIT_LONG_UP_TO, LONG_INPUTS, MIN_INPUTS = 1.25, 2.0, 2048, 512
# Inputs of a step and how many steps are under way: long steps where all blocks run at once.
LONG_STEP, LONG_STAGES, STEP, STAGES, MIN_STEP = 128, 3, 64, 4, 32
# Sums of a block from which it has eight warps instead of four.
MANY_SUMS = 128 * 128


@triton.jit
def block_linear_kernel(
    x, w, bias, squares, out, sums, partials, arrived,
    rows, outputs, inputs, stride_x, stride_out, parts, stride_parts, stride_rows, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, RESIDUAL: tl.constexpr, BIAS: tl.constexpr, FLOAT_OUT: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The macros of skinny_linear.cu; `squares` and `sums` are those of x and of out (interface.Hidden).

    Outputs and inputs are arguments, so that all products share a few compiled kernels.

    Program (tile, split): the last of a tile's splits adds the others' sums, in their order, and writes the result.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    # Neighbouring programs share weights.
    row_tiles = tl.cdiv(rows, ROWS)
    row = tile % row_tiles * ROWS + tl.arange(0, ROWS)
    first = tile // row_tiles * OUTPUTS
    output = first + tl.arange(0, OUTPUTS)
    k = split * (inputs // SPLIT) + tl.arange(0, STEP)
    columns = x + tl.minimum(row, rows - 1)[None, :] * stride_x + k[:, None]
    weights = w + output[:, None] * inputs + k[None, :]
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    upper = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in range(0, inputs // SPLIT, STEP):
        values = tl.load(columns + start)
        total = tl.dot(tl.load(weights + start), values, total)
        if GATED:
            upper = tl.dot(tl.load(weights + (start + outputs * inputs)), values, upper)
    is_last = True
    if SPLIT > 1:
        SUMS: tl.constexpr = (1 + GATED) * OUTPUTS * ROWS
        inner = tl.arange(0, OUTPUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        own = partials + (tile * SPLIT + split) * SUMS + inner
        tl.store(own, total)
        if GATED:
            tl.store(own + OUTPUTS * ROWS, upper)
        tl.debug_barrier()  # all threads' sums precede the count
        is_last = tl.atomic_add(arrived + tile, 1) == SPLIT - 1
        if is_last:
            tl.store(arrived + tile, 0)
            # Past the first-level cache, which does not see other multiprocessors' writes.
            source = partials + tile * SPLIT * SUMS + inner
            total = tl.load(source, cache_modifier=".cg")
            if GATED:
                upper = tl.load(source + OUTPUTS * ROWS, cache_modifier=".cg")
            for _ in range(1, SPLIT):
                source += SUMS
                total += tl.load(source, cache_modifier=".cg")
                if GATED:
                    upper += tl.load(source + OUTPUTS * ROWS, cache_modifier=".cg")
    if is_last:
        inside = row < rows
        if NORM:
            part = tl.arange(0, PARTS)
            place = part[:, None] * stride_parts + row[None, :] * stride_rows
            square = tl.load(squares + place, mask=(part < parts)[:, None] & inside[None, :], other=0.0)
            inverse = tl.rsqrt(tl.sum(square, axis=0) / inputs + eps)[None, :]
            total *= inverse
            upper *= inverse
        if BIAS:
            total += tl.load(bias + output).to(tl.float32)[:, None]
        if GATED:
            gate = _rounded(total)
            total = _rounded(gate / (1.0 + tl.exp(-gate))) * _rounded(upper)
        target = out + row[None, :].to(tl.int64) * stride_out + output[:, None]
        if RESIDUAL:
            total = _rounded(_rounded(total) + tl.load(target, mask=inside[None, :], other=0.0).to(tl.float32))
            tl.store(sums + first // OUTPUTS * rows + row, tl.sum(total * total, axis=0), mask=inside)
        tl.store(target, total.to(out.dtype.element_ty), mask=inside[None, :])


@triton.jit
def _rounded(value):
    return value.to(tl.bfloat16).to(tl.float32)


@dataclass(frozen=True)
class BlockLinear(Linear):
    function: ClassVar[str] = "block_linear"

    ROWS: int
    OUTPUTS: int
    SPLIT: int
    STEP: int
    stages: int

    @property
    def warps(self) -> int:
        return 8 if self.ROWS * self.OUTPUTS * (1 + self.GATED) >= MANY_SUMS else 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, at most: the steps under way."""
        return self.stages * self.STEP * 2 * (self.ROWS + self.OUTPUTS * (1 + self.GATED))

    def tiles(self, rows: int) -> int:
        return self.N // self.OUTPUTS * triton.cdiv(rows, self.ROWS)

    def launch(
        self, x: Tensor, weight: Tensor, out: Tensor, squares: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor | None:
        """The sums of squares of `out`, [parts, rows], if RESIDUAL."""
        rows = len(x)
        sums = x.new_empty(self.N // self.OUTPUTS, rows, dtype=torch.float32) if self.RESIDUAL else None
        parts, strides = (1, (0, 0)) if squares is None else (len(squares), squares.stride())
        block_linear_kernel[(self.tiles(rows), self.SPLIT)](
            x, weight, bias, squares, out, sums, *scratch(x.device),
            rows, self.N, self.K, x.stride(0), out.stride(0), parts, *strides, eps,
            **self.constants, PARTS=triton.next_power_of_2(parts), num_warps=self.warps, num_stages=self.stages,
        )  # fmt: skip
        return sums

    @property
    def constants(self) -> dict[str, int]:
        return {name: value for name, value in self.macros.items() if name.isupper() and name not in ("N", "K")}


def block_linear(outputs: int, inputs: int, rows: int, device: Any, **flags: int) -> BlockLinear | None:
    """The form for `rows` on a GPU with `device`'s multi_processor_count and shared_memory_per_block_optin.

    None for a product that blocks do not divide.
    """
    gated = flags.get("GATED", 0)
    is_wide = rows >= WIDE_FROM_ROWS and not gated and outputs >= WIDE_FROM_OUTPUTS and outputs % WIDE_OUTPUTS == 0
    height, width = WIDE_OUTPUTS if is_wide else OUTPUTS, by_rows(ROWS, rows, MOST_ROWS)
    if outputs % height or inputs % MIN_STEP:
        return None
    blocks = outputs // height * triton.cdiv(rows, width) / device.multi_processor_count
    split = 1
    while _may_split(inputs, split) and 2 * blocks * split <= (
        SPLIT_LONG_UP_TO if inputs // split > LONG_INPUTS else SPLIT_UP_TO
    ):
        split *= 2
    steps = [(LONG_STEP, LONG_STAGES)] if blocks * split <= SPLIT_UP_TO else []
    steps += [(step, stages) for step in (STEP, MIN_STEP) for stages in (STAGES, STAGES - 1)]
    forms = (BlockLinear(outputs, inputs, width, height, split, *step, **flags) for step in steps)
    memory = device.shared_memory_per_block_optin
    return next((form for form in forms if inputs // split % form.STEP == 0 and form.shared_bytes <= memory), None)


def _may_split(inputs: int, split: int) -> bool:
    return inputs // (2 * split) >= MIN_INPUTS and inputs % (2 * split * LONG_STEP) == 0


@cache
def scratch(device: torch.device) -> tuple[Tensor, Tensor]:
    """Sums of splits, and how many of each tile's have arrived, which a launch leaves at zero; graphs keep both."""
    blocks = int(SPLIT_LONG_UP_TO * torch.cuda.get_device_properties(device).multi_processor_count)
    partials = torch.empty(blocks * 2 * OUTPUTS * MOST_ROWS, dtype=torch.float32, device=device)
    return partials, torch.zeros(blocks, dtype=torch.int32, device=device)
