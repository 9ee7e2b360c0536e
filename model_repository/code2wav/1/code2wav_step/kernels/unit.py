"""A fused residual unit for few channels: convolution, SnakeBeta, pointwise product, residual, SnakeBeta."""

import triton
import triton.language as tl

from code2wav_step.kernels.snake import snake


@triton.jit
def unit_kernel(
    x, weight, bias, alpha, inverse_beta, weight2, bias2, alpha2, inverse_beta2, residual, out, active,
    rows, positions, width, x_stride, active_stride,
    CHANNELS: tl.constexpr, DILATION: tl.constexpr, FAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """ops.Ops.unit. Blocks are powers of two and channels three times one: each row is split into 2/3 and 1/3.

    `width` is as in product_kernel; `residual` and `out` are contiguous.
    """
    LARGE: tl.constexpr = CHANNELS // 3 * 2
    SMALL: tl.constexpr = CHANNELS // 3
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = (row < rows)[:, None]
    row = tl.minimum(row, rows - 1)
    entry, position = row // positions, row % positions
    large, small = tl.arange(0, LARGE), LARGE + tl.arange(0, SMALL)
    x_rows = x + (entry * x_stride + position * CHANNELS)[:, None]
    y_large = tl.zeros([BLOCK_M, LARGE], tl.float32)
    y_small = tl.zeros([BLOCK_M, SMALL], tl.float32)
    if BLOCK_K < CHANNELS:
        k = tl.arange(0, BLOCK_K)
        large_weights = weight + large[None, :] * width + k[:, None]
        small_weights = weight + small[None, :] * width + k[:, None]
        for start in range(0, width, BLOCK_K):
            tile = tl.load(x_rows + k[None, :] + (start + start // CHANNELS * ((DILATION - 1) * CHANNELS)))
            y_large = tl.dot(tile, tl.load(large_weights + start), y_large)
            y_small = tl.dot(tile, tl.load(small_weights + start), y_small)
    else:  # a whole tap per step
        for start in range(0, width, CHANNELS):
            taps = x_rows + start * DILATION
            large_tile, small_tile = tl.load(taps + large[None, :]), tl.load(taps + small[None, :])
            y_large = _both(large_tile, small_tile, weight + start, width, large, y_large, LARGE, SMALL)
            y_small = _both(large_tile, small_tile, weight + start, width, small, y_small, LARGE, SMALL)
    dtype: tl.constexpr = active.dtype.element_ty
    a_large = _activated(y_large, bias, alpha, inverse_beta, large, FAST).to(dtype)
    a_small = _activated(y_small, bias, alpha, inverse_beta, small, FAST).to(dtype)
    z_large, z_small = tl.zeros([BLOCK_M, LARGE], tl.float32), tl.zeros([BLOCK_M, SMALL], tl.float32)
    z_large = _both(a_large, a_small, weight2, CHANNELS, large, z_large, LARGE, SMALL)
    z_small = _both(a_large, a_small, weight2, CHANNELS, small, z_small, LARGE, SMALL)
    at = (entry * active_stride + position * CHANNELS)[:, None]
    _finish(z_large, large, bias2, alpha2, inverse_beta2, residual, out, active, row, at, inside, CHANNELS, FAST)
    _finish(z_small, small, bias2, alpha2, inverse_beta2, residual, out, active, row, at, inside, CHANNELS, FAST)


@triton.jit
def _activated(y, bias, alpha, inverse_beta, column, FAST: tl.constexpr):
    y += tl.load(bias + column)[None, :]
    return snake(y, tl.load(alpha + column)[None, :], tl.load(inverse_beta + column)[None, :], FAST)


@triton.jit
def _both(x_large, x_small, weight, width, column, total, LARGE: tl.constexpr, SMALL: tl.constexpr):
    """`total` plus a product over all channels."""
    weights = weight + column[None, :] * width
    total = tl.dot(x_large, tl.load(weights + tl.arange(0, LARGE)[:, None]), total)
    return tl.dot(x_small, tl.load(weights + LARGE + tl.arange(0, SMALL)[:, None]), total)


@triton.jit
def _finish(
    z, column, bias, alpha, inverse_beta, residual, out, active, row, at, inside,
    CHANNELS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    here = row[:, None] * CHANNELS + column[None, :]
    z += tl.load(bias + column)[None, :] + tl.load(residual + here, mask=inside, other=0.0).to(tl.float32)
    if out is not None:
        tl.store(out + here, z.to(out.dtype.element_ty), mask=inside)
    activated = snake(z, tl.load(alpha + column)[None, :], tl.load(inverse_beta + column)[None, :], FAST)
    tl.store(active + at + column[None, :], activated.to(active.dtype.element_ty), mask=inside)
