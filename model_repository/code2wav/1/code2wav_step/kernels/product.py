"""A matrix product over shifted rows (a causal convolution), fused with the row-wise operations that follow."""

import triton
import triton.language as tl

from code2wav_step.kernels.snake import snake


@triton.jit
def product_kernel(
    x, weight, bias, residual, alpha, inverse_beta, out, active,
    rows, positions, width, x_stride, residual_stride, out_stride, active_stride, eps,
    OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr, DILATION: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, FAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """ops.Ops.product; a row is a position of a batch entry, strides are those of batch entries.

    `width` is taps · channels, not a constant, so that the loop is not unrolled and fits the instruction cache.
    """
    tiles = tl.cdiv(OUTPUTS, BLOCK_N)
    # Neighbouring programs share rows of x; the weights stay in the cache anyway.
    tile_m, tile_n = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row < rows)[:, None] & (column < OUTPUTS)[None, :]
    # Rows and columns past the end repeat the last one, so that no load needs a mask.
    entry, position = tl.minimum(row, rows - 1) // positions, tl.minimum(row, rows - 1) % positions
    k = tl.arange(0, BLOCK_K)
    x_rows = x + (entry * x_stride + position * CHANNELS)[:, None] + k[None, :]
    weight_columns = weight + tl.minimum(column, OUTPUTS - 1)[None, :] * width + k[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    upper = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    # WGMMA reads shared memory asynchronously, and the pipeline does not wait for it if registers read the same rows
    # (Triton 3.6 keeps one buffer too few): those rows are then loaded twice.
    TWICE: tl.constexpr = NORM and BLOCK_M >= 64
    if TWICE:
        for start in range(0, width, BLOCK_K):
            squares += _squares(tl.load(x_rows + start))
    for start in range(0, width, BLOCK_K):
        tile = tl.load(x_rows + (start + start // CHANNELS * ((DILATION - 1) * CHANNELS)))
        total = tl.dot(tile, tl.load(weight_columns + start), total)
        if GATED:
            upper = tl.dot(tile, tl.load(weight_columns + (start + OUTPUTS * width)), upper)
        if NORM and not TWICE:
            squares += _squares(tile)
    if NORM:
        scale = tl.rsqrt(squares / width + eps)[:, None]
        total *= scale
        upper *= scale
    if bias is not None:
        total += tl.load(bias + column, mask=column < OUTPUTS, other=0.0)[None, :]
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * upper
    if GELU:
        total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    at = (position * OUTPUTS)[:, None] + column[None, :]
    if residual is not None:
        total += tl.load(residual + (entry * residual_stride)[:, None] + at, mask=inside, other=0.0).to(tl.float32)
    if out is not None:
        tl.store(out + (entry * out_stride)[:, None] + at, total.to(out.dtype.element_ty), mask=inside)
    if active is not None:
        alphas = tl.load(alpha + column, mask=column < OUTPUTS, other=0.0)[None, :]
        betas = tl.load(inverse_beta + column, mask=column < OUTPUTS, other=0.0)[None, :]
        activated = snake(total, alphas, betas, FAST).to(active.dtype.element_ty)
        tl.store(active + (entry * active_stride)[:, None] + at, activated, mask=inside)


@triton.jit
def _squares(tile):
    exact = tile.to(tl.float32)
    return tl.sum(exact * exact, axis=1)
