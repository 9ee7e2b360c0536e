"""Attention of a chunk's frames over the state's window and the chunk."""

import triton
import triton.language as tl

from code2wav_step.kernels.rowwise import entry_state


@triton.jit
def _angles(cosine, sine, slot, inside, HALF: tl.constexpr):
    at = slot[:, None] * HALF + tl.arange(0, HALF)[None, :]
    cos = tl.load(cosine + at, mask=inside, other=0.0)
    return cos, tl.load(sine + at, mask=inside, other=0.0)


@triton.jit
def _rotate(x, cos, sin, dtype: tl.constexpr, HALF: tl.constexpr):
    """The rotated halves of rows [slots, 2 · HALF]."""
    first, second = tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, HALF]), [0, 2, 1]))
    return (first * cos - second * sin).to(dtype), (second * cos + first * sin).to(dtype)


@triton.jit
def attention_kernel(
    qkv, state, state_out, addresses, next_addresses, history, cosine, sine, out,
    keys_offset, values_offset, frames, state_size, scale,
    WINDOW: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """ops.Ops.attend, one program per head and batch entry: slots are the window's frames, then the chunk's.

    States are rows of `state` and `state_out`, or at `addresses` and `next_addresses` [batch], which may be equal.
    """
    head, entry = tl.program_id(0), tl.program_id(1)
    WIDTH: tl.constexpr = 2 * HALF * HEADS
    dtype: tl.constexpr = out.dtype.element_ty
    slot, frame = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_T)
    column = head * 2 * HALF + tl.arange(0, 2 * HALF)[None, :]
    past, is_slot = (slot < WINDOW)[:, None], (slot < WINDOW + frames)[:, None]
    is_query = (frame < frames)[:, None]
    qkv += entry * frames * 3 * WIDTH
    kept = entry_state(state, addresses, entry.to(tl.int64), state_size)
    next_state = entry_state(state_out, next_addresses, entry.to(tl.int64), state_size)
    seen = tl.load(history + entry)

    # Triton converts the keys to an operand right after their load, and loads after that wait for them.
    query = tl.load(qkv + (frame * 3 * WIDTH)[:, None] + column, mask=is_query, other=0.0)
    past_row, fresh_row = (slot * WIDTH)[:, None], ((slot - WINDOW) * 3 * WIDTH)[:, None]
    keys = tl.where(past, kept + keys_offset + past_row, qkv + WIDTH + fresh_row)
    values = tl.where(past, kept + values_offset + past_row, qkv + 2 * WIDTH + fresh_row)
    value = tl.load(values + column, mask=is_slot, other=0.0)
    key = tl.load(keys + column, mask=is_slot, other=0.0)
    if addresses is not None:
        tl.debug_barrier()  # the window may be shifted in place
    moved, moved_row = is_slot & (slot >= frames)[:, None], ((slot - frames) * WIDTH)[:, None]
    tl.store(next_state + values_offset + moved_row + column, value, mask=moved)
    tl.store(next_state + keys_offset + moved_row + column, key, mask=moved)

    query_cos, query_sin = _angles(cosine, sine, WINDOW + frame, is_query, HALF)
    cos, sin = _angles(cosine, sine, slot, is_slot, HALF)
    query_first, query_second = _rotate(query, query_cos, query_sin, dtype, HALF)
    key_first, key_second = _rotate(key, cos, sin, dtype, HALF)
    # Slots are rows of the scores, because there are enough of them for Hopper's matrix instructions.
    scores = tl.dot(key_first, tl.trans(query_first))
    scores = tl.dot(key_second, tl.trans(query_second), scores) * scale

    # A frame always sees itself, whatever history the caller passes.
    valid = (slot < WINDOW + frames) & (WINDOW - slot <= tl.maximum(seen, 0))
    band = (slot[:, None] >= frame[None, :]) & (slot[:, None] <= frame[None, :] + WINDOW)
    scores = tl.where(valid[:, None] & band, scores, -1e30)
    weights = tl.exp(scores - tl.max(scores, axis=0)[None, :])
    weights = weights / tl.sum(weights, axis=0)[None, :]
    y = tl.trans(tl.dot(tl.trans(value), weights.to(dtype)))
    tl.store(out + (entry * frames + frame)[:, None] * WIDTH + column, y.to(dtype), mask=is_query)
