"""Kernels without a matrix product: embedding sum, depthwise convolution, last convolution, PCM, histories."""

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
    x, weight, bias, out, positions, x_stride, CHANNELS: tl.constexpr, TAPS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """ops.Ops.last, one program per batch entry and BLOCK_M rows of its input, TAPS - 1 of which the next one shares.

    A product multiplies each row by the taps, as COLUMNS rounded to its dtype and as many of what rounding lost.
    """
    LOST_SCALE: tl.constexpr = 2048  # keeps what FP16 lost above its smallest numbers
    line, entry = tl.arange(0, BLOCK_M), tl.program_id(1)
    row = tl.program_id(0) * (BLOCK_M - TAPS + 1) + line
    column, channel = tl.arange(0, 2 * COLUMNS), tl.arange(0, BLOCK)
    tap, is_channel = column % COLUMNS, channel < CHANNELS
    at = x + entry.to(tl.int64) * x_stride + (row * CHANNELS)[:, None] + channel[None, :]
    rows = tl.load(at, mask=(row < positions + TAPS - 1)[:, None] & is_channel[None, :], other=0.0)
    inside = (tap < TAPS)[None, :] & is_channel[:, None]
    exact = tl.load(weight + tap[None, :] * CHANNELS + channel[:, None], mask=inside, other=0.0)
    rounded = exact.to(rows.dtype)
    lost = ((exact - rounded.to(tl.float32)) * LOST_SCALE).to(rows.dtype)
    products = tl.dot(rows, tl.where((column < COLUMNS)[None, :], rounded, lost))
    products = products * tl.where(column < COLUMNS, 1.0, 1.0 / LOST_SCALE)[None, :]
    taps = tl.sum(tl.reshape(products, [BLOCK_M, 2, COLUMNS]), axis=1)
    # A result is the sum of a diagonal.
    diagonal = tl.minimum(line[:, None] + tl.arange(0, COLUMNS)[None, :], BLOCK_M - 1)
    total = tl.sum(tl.gather(taps, diagonal, axis=0), axis=1) + tl.load(bias)
    tl.store(out + entry * positions + row, total, mask=(line < BLOCK_M - TAPS + 1) & (row < positions))


@triton.jit
def pcm_kernel(waveform, denied, pcm, samples, SCALE: tl.constexpr, NO_SAMPLE: tl.constexpr, BLOCK: tl.constexpr):
    """pcm.to_int16, one program per row; with `denied` [batch] also pcm.mark_denied."""
    row, place = tl.program_id(0).to(tl.int64) * samples, tl.arange(0, BLOCK)
    overflowed = tl.zeros([BLOCK], tl.int32)
    for start in range(0, samples, BLOCK):
        inside = start + place < samples
        x = tl.load(waveform + row + start + place, mask=inside, other=0.0)
        overflowed |= tl.where(tl.abs(x) < float("inf"), 0, 1)
        # Adding 1.5 · 2²³ rounds to whole numbers, ties to even; clamped in between, so that nothing is fused with it.
        scaled = tl.minimum(tl.maximum(x * SCALE, -SCALE), SCALE)
        tl.store(pcm + row + start + place, ((scaled + 12582912.0) - 12582912.0).to(tl.int16), mask=inside)
    tl.debug_barrier()  # the first samples are written again
    if tl.max(overflowed, axis=0) > 0:
        tl.store(pcm + row, NO_SAMPLE)
        tl.store(pcm + row + 1, 0)
    if denied is not None:  # noqa: SIM102 (Triton evaluates both sides of an "and")
        if tl.load(denied + tl.program_id(0)) != 0:
            tl.store(pcm + row, NO_SAMPLE)
            tl.store(pcm + row + 1, NO_SAMPLE)


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
