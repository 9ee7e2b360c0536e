"""Kernels without a matrix product: embedding sum, depthwise convolution, last convolution, histories."""

import triton
import triton.language as tl


@triton.jit
def embed_kernel(
    codes, table, out, frames, out_stride, QUANTIZERS: tl.constexpr, CODES: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """ops.Ops.embed, one program per frame; codes out of range are clamped."""
    frame, channel = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for quantizer in tl.static_range(QUANTIZERS):
        code = tl.load(codes + frame * QUANTIZERS + quantizer)
        line = tl.minimum(tl.maximum(code, 0), CODES - 1) + quantizer * CODES
        total += tl.load(table + line * CHANNELS + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)
    at = frame // frames * out_stride + frame % frames * CHANNELS + channel
    tl.store(out + at, total.to(out.dtype.element_ty), mask=channel < CHANNELS)


@triton.jit
def depthwise_kernel(
    x, weight, bias, out, positions, x_stride, eps, CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,

):  # fmt: skip
    """ops.Ops.depthwise, one program per position."""
    row, channel = tl.program_id(0), tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    at = x + row // positions * x_stride + row % positions * CHANNELS + channel
    total = tl.load(bias + channel, mask=inside, other=0.0)
    for tap in tl.static_range(TAPS):
        value = tl.load(at + tap * CHANNELS, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weight + tap * CHANNELS + channel, mask=inside, other=0.0)
    centred = tl.where(inside, total - tl.sum(total, axis=0) / CHANNELS, 0.0)
    deviation = tl.rsqrt(tl.sum(centred * centred, axis=0) / CHANNELS + eps)
    tl.store(out + row * CHANNELS + channel, (centred * deviation).to(out.dtype.element_ty), mask=inside)


@triton.jit
def last_kernel(
    x, weight, bias, out, rows, positions, x_stride, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """ops.Ops.last."""
    row, channel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (channel < CHANNELS)[None, :]
    at = x + (row // positions * x_stride + row % positions * CHANNELS)[:, None] + channel[None, :]
    total = tl.zeros([BLOCK_M, BLOCK], tl.float32)
    for tap in tl.static_range(TAPS):
        taps = tl.load(weight + tap * CHANNELS + channel, mask=channel < CHANNELS, other=0.0)[None, :]
        total += tl.load(at + tap * CHANNELS, mask=inside, other=0.0).to(tl.float32) * taps
    tl.store(out + row, tl.sum(total, axis=1) + tl.load(bias), mask=row < rows)


@triton.jit
def entry_state(state, addresses, entry, state_size):
    if addresses is None:
        found = state + entry * state_size
    else:
        # A state begins at a multiple of 16 bytes, as the rows of `state` do.
        found = tl.multiple_of(tl.load(addresses + entry).to(state.dtype), 16)
    return found


@triton.jit
def history_kernel(state, addresses, arena, plan, state_size, CLOSE: tl.constexpr, CHANNELS: tl.constexpr):
    """Copies histories [channels, past] of the state to the front of sequences [past + new, channels], or back.

    Entry i's state is row i of `state`, or with `addresses` [batch] at that address.

    A line of `plan` is up to CHANNELS channels of a piece: offset in the state, length of the past (64 at most),
    offset in the arena of all sequences, strides of the sequence's batch entries and positions, number of new
    positions, number of channels. Copying back takes the end of each sequence.
    """
    line, entry = plan + tl.program_id(0) * 7, tl.program_id(1).to(tl.int64)
    past, row_stride = tl.load(line + 1), tl.load(line + 4)
    kept = entry_state(state, addresses, entry, state_size) + tl.load(line)
    moved = arena + tl.load(line + 2) + entry * tl.load(line + 3)
    if CLOSE:
        moved += tl.load(line + 5) * row_stride
    channels = tl.load(line + 6)
    if past <= 2:
        _move(kept, moved, past, row_stride, channels, CLOSE, CHANNELS, 2)
    elif past <= 8:
        _move(kept, moved, past, row_stride, channels, CLOSE, CHANNELS, 8)
    elif past <= 32:
        _move(kept, moved, past, row_stride, channels, CLOSE, CHANNELS, 32)
    else:
        _move(kept, moved, past, row_stride, channels, CLOSE, CHANNELS, 64)


@triton.jit
def _move(
    kept, moved, past, row_stride, channels, CLOSE: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr
):
    channel, position = tl.arange(0, CHANNELS)[:, None], tl.arange(0, POSITIONS)[None, :]
    inside = (channel < channels) & (position < past)
    kept_at, moved_at = kept + channel * past + position, moved + position * row_stride + channel
    if CLOSE:
        tl.store(kept_at, tl.load(moved_at, mask=inside, other=0.0), mask=inside)
    else:
        tl.store(moved_at, tl.load(kept_at, mask=inside, other=0.0), mask=inside)
