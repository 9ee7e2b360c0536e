"""Attention of a chunk's frames over the state's window and the chunk."""

import triton
import triton.language as tl

from code2wav_step.kernels.rowwise import entry_state


@triton.jit
def _rows(state, qkv, past_at, fresh_at, past, fresh):
    kept = tl.load(state + past_at, mask=past[:, None], other=0.0)
    return kept + tl.load(qkv + fresh_at, mask=fresh[:, None], other=0.0)


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
    slot, frame = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_T)
    half, whole = head * 2 * HALF + tl.arange(0, HALF), head * 2 * HALF + tl.arange(0, 2 * HALF)
    past, fresh = slot < WINDOW, (slot >= WINDOW) & (slot < WINDOW + frames)
    moved = (slot >= frames) & (slot < WINDOW + frames)
    qkv += entry * frames * 3 * WIDTH
    kept = entry_state(state, addresses, entry.to(tl.int64), state_size)
    next_state = entry_state(state_out, next_addresses, entry.to(tl.int64), state_size)
    past_row, fresh_row = (slot * WIDTH)[:, None], ((slot - WINDOW) * 3 * WIDTH)[:, None]
    moved_row = ((slot - frames) * WIDTH)[:, None]

    keys, fresh_keys = kept + keys_offset, qkv + WIDTH
    first = _rows(keys, fresh_keys, past_row + half, fresh_row + half, past, fresh)
    second = _rows(keys, fresh_keys, past_row + half + HALF, fresh_row + half + HALF, past, fresh)
    values = _rows(kept + values_offset, qkv + 2 * WIDTH, past_row + whole, fresh_row + whole, past, fresh)
    if addresses is not None:
        tl.debug_barrier()  # the window may be shifted in place
    tl.store(next_state + keys_offset + moved_row + half, first, mask=moved[:, None])
    tl.store(next_state + keys_offset + moved_row + half + HALF, second, mask=moved[:, None])
    tl.store(next_state + values_offset + moved_row + whole, values, mask=moved[:, None])

    dtype: tl.constexpr = out.dtype.element_ty
    angle = tl.arange(0, HALF)[None, :]
    is_slot = (past | fresh)[:, None]
    cos = tl.load(cosine + slot[:, None] * HALF + angle, mask=is_slot, other=0.0)
    sin = tl.load(sine + slot[:, None] * HALF + angle, mask=is_slot, other=0.0)
    key_first = (first * cos - second * sin).to(dtype)
    key_second = (second * cos + first * sin).to(dtype)
    is_query = (frame < frames)[:, None]
    cos = tl.load(cosine + (WINDOW + frame)[:, None] * HALF + angle, mask=is_query, other=0.0)
    sin = tl.load(sine + (WINDOW + frame)[:, None] * HALF + angle, mask=is_query, other=0.0)
    query_row = (frame * 3 * WIDTH)[:, None]
    first = tl.load(qkv + query_row + half, mask=is_query, other=0.0)
    second = tl.load(qkv + query_row + half + HALF, mask=is_query, other=0.0)
    scores = tl.dot((first * cos - second * sin).to(dtype), tl.trans(key_first))
    scores = tl.dot((second * cos + first * sin).to(dtype), tl.trans(key_second), scores) * scale

    # A frame always sees itself, whatever history the caller passes.
    valid = (past | fresh) & (WINDOW - slot <= tl.maximum(tl.load(history + entry), 0))
    band = (slot[None, :] >= frame[:, None]) & (slot[None, :] <= frame[:, None] + WINDOW)
    scores = tl.where(valid[None, :] & band, scores, -1e30)
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    weights = weights / tl.sum(weights, axis=1)[:, None]
    y = tl.dot(weights.to(dtype), values)
    tl.store(out + (entry * frames + frame)[:, None] * WIDTH + whole[None, :], y.to(dtype), mask=is_query)
