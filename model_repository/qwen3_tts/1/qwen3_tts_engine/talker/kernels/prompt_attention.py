"""Attention of prompts: a program attends for several rows of a prompt, and so reads its keys once for all of them."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Queries of a program, and the keys that it takes at a time. The keys of a row are taken alike in every batch.
QUERIES, KEYS = 64, 32
WARPS = 4
LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e30)


def programs(rows: int, group: int) -> int:
    """Programs per key head, each with whole rows of `group` query heads."""
    return -(-rows // (QUERIES // group))


@triton.jit
def prompt_attention_kernel(
    qkv, q_norm, cos, sin, keys, values, page_table, slots, positions, out, rows, stride_page_table, eps, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ops.interface.Ops.paged_attention after the store of all rows' keys; the rows of a slot are consecutive.

    `qkv` are products [rows, (GROUP + 2) KV_HEADS D]. A program has QUERIES // GROUP rows and one key head.
    """
    HALF: tl.constexpr = D // 2
    ROWS: tl.constexpr = QUERIES // GROUP
    WIDTH: tl.constexpr = (GROUP + 2) * KV_HEADS * D
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    head, query = tl.program_id(1), tl.arange(0, QUERIES)
    start = tl.program_id(0) * ROWS
    end = tl.minimum(start + ROWS, rows)
    row = start + query // GROUP
    inside = (query < ROWS * GROUP) & (row < rows)
    slot = tl.load(slots + row, mask=inside, other=-1)
    position = tl.load(positions + row, mask=inside, other=0)
    half, whole = tl.arange(0, HALF), tl.arange(0, D)

    # Rounds where the reference does, like attention.cu.
    query_head = head * GROUP + query % GROUP
    at = (qkv + row * WIDTH + query_head * D)[:, None] + half[None, :]
    first = tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
    dtype: tl.constexpr = out.dtype.element_ty
    inverse = tl.rsqrt((tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / D + eps)[:, None]
    first = _rounded(_rounded(first * inverse, dtype) * tl.load(q_norm + half).to(tl.float32)[None, :], dtype)
    second = _rounded(_rounded(second * inverse, dtype) * tl.load(q_norm + HALF + half).to(tl.float32)[None, :], dtype)
    angle = (position * HALF)[:, None] + half[None, :]
    c, s = tl.load(cos + angle).to(tl.float32), tl.load(sin + angle).to(tl.float32)
    query_first = (_rounded(first * c, dtype) - _rounded(second * s, dtype)).to(dtype)
    query_second = (_rounded(second * c, dtype) + _rounded(first * s, dtype)).to(dtype)

    top = tl.full([QUERIES], NOTHING, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    attended = tl.zeros([QUERIES, D], tl.float32)
    while start < end:
        current = tl.load(slots + start)
        mine = inside & (slot == current) & (row >= start)
        last = tl.max(tl.where(mine, position, 0), axis=0)
        pages = page_table + current * stride_page_table
        for begin in range(0, last + 1, KEYS):
            key = begin + tl.arange(0, KEYS)
            stored = key <= last
            page = tl.load(pages + key // PAGE, mask=stored, other=0)
            place = (((page * PAGE + key % PAGE) * KV_HEADS + head) * D)[:, None]
            key_first = tl.load(keys + place + half[None, :], mask=stored[:, None], other=0.0)
            key_second = tl.load(keys + place + HALF + half[None, :], mask=stored[:, None], other=0.0)
            value = tl.load(values + place + whole[None, :], mask=stored[:, None], other=0.0)
            scores = tl.dot(query_first, tl.trans(key_first))
            scores = tl.dot(query_second, tl.trans(key_second), scores) * (scale * LOG2_E)
            seen = mine[:, None] & (key[None, :] <= position[:, None])
            scores = tl.where(seen, scores, NOTHING)
            new_top = tl.maximum(top, tl.max(scores, axis=1))
            shrink = tl.exp2(top - new_top)
            weights = tl.where(seen, tl.exp2(scores - new_top[:, None]), 0.0)
            total = total * shrink + tl.sum(weights, axis=1)
            attended = tl.dot(weights.to(dtype), value, attended * shrink[:, None])
            top = new_top
        start += tl.sum(mine.to(tl.int32), axis=0) // GROUP
    at = (out + row * (GROUP * KV_HEADS * D) + query_head * D)[:, None] + whole[None, :]
    tl.store(at, (attended / tl.where(inside, total, 1.0)[:, None]).to(dtype), mask=inside[:, None])


@triton.jit
def _rounded(value, dtype: tl.constexpr):
    return value.to(dtype).to(tl.float32)
