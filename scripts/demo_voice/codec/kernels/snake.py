"""SnakeBeta and its gradients in one pass each over channels-last arrays; most of the training moves these arrays."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, TILES = 4096, 8


def forward(x: Tensor, alpha: Tensor, inverse_beta: Tensor) -> Tensor:
    """x [batch, channels, 1, time], channels-last; fp32 [channels], as is 1 / beta."""
    y, count = torch.empty_like(x), x.numel()
    forward_kernel[(triton.cdiv(count, BLOCK),)](x, alpha, inverse_beta, y, count, CHANNELS=x.shape[1], BLOCK=BLOCK)
    return y


def backward(gradient: Tensor, x: Tensor, alpha: Tensor, inverse_beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient by x, and those by alpha and 1 / beta, fp32 [channels]."""
    channels, rows = x.shape[1], x.numel() // x.shape[1]
    programs = triton.cdiv(rows, TILES * (BLOCK // channels))
    by_x = torch.empty_like(x)
    partial = torch.empty(2, programs, channels, dtype=torch.float32, device=x.device)
    backward_kernel[(programs,)](
        gradient, x, alpha, inverse_beta, by_x, *partial, rows,
        CHANNELS=channels, ROWS=BLOCK // channels, TILES=TILES, num_warps=8,
    )  # fmt: skip
    by_alpha, by_inverse_beta = partial.sum(1)
    return by_x, by_alpha, by_inverse_beta


@triton.jit
def forward_kernel(x, alpha, inverse_beta, y, count, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, inside, other=0.0).to(tl.float32)
    sine = tl.sin(value * tl.load(alpha + at % CHANNELS))
    result = value + sine * sine * tl.load(inverse_beta + at % CHANNELS)
    tl.store(y + at, result.to(y.dtype.element_ty), inside)


@triton.jit
def backward_kernel(
    gradient, x, alpha, inverse_beta, by_x, by_alpha, by_inverse_beta, rows,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program sums the gradients by the parameters over its TILES * ROWS rows."""
    program, channel = tl.program_id(0), tl.arange(0, CHANNELS)
    a, b = tl.load(alpha + channel)[None], tl.load(inverse_beta + channel)[None]
    sum_alpha = tl.zeros((CHANNELS,), tl.float32)
    sum_beta = tl.zeros((CHANNELS,), tl.float32)
    for tile in range(TILES):
        row = (program * TILES + tile) * ROWS + tl.arange(0, ROWS)
        at, inside = row[:, None] * CHANNELS + channel[None], (row < rows)[:, None]
        g = tl.load(gradient + at, inside, other=0.0).to(tl.float32)
        value = tl.load(x + at, inside, other=0.0).to(tl.float32)
        sine, cosine = tl.sin(value * a), tl.cos(value * a)
        slope = 2 * sine * cosine * b
        tl.store(by_x + at, (g * (1 + slope * a)).to(by_x.dtype.element_ty), inside)
        sum_alpha += tl.sum(g * slope * value, 0)
        sum_beta += tl.sum(g * sine * sine, 0)
    tl.store(by_alpha + program * CHANNELS + channel, sum_alpha)
    tl.store(by_inverse_beta + program * CHANNELS + channel, sum_beta)
