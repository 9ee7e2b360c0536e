"""The order of the terms of a causal convolution, inside other kernels."""

import triton
import triton.language as tl

# Elements of FP16.
REUSED_PIECE = tl.constexpr(4)


@triton.jit
def offsets(
    start,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr, BLOCK_K: tl.constexpr, REUSE: tl.constexpr,
):  # fmt: skip
    """Where a row of x and a row of the weights have the terms from `start` on.

    One tap after the other, or with REUSE all taps of BLOCK_K channels, which read almost the same rows of x. Then x is
    to be loaded in pieces of 8 bytes, which go through the first-level cache: those of 16 bypass it.
    """
    if REUSE:
        step = start // BLOCK_K
        tap, channel = step % TAPS, step // TAPS * BLOCK_K
        weight_offset = tap * CHANNELS + channel
        x_offset = weight_offset + tap * ((DILATION - 1) * CHANNELS)
    else:
        weight_offset = start
        x_offset = start + start // CHANNELS * ((DILATION - 1) * CHANNELS)
    return x_offset, weight_offset
