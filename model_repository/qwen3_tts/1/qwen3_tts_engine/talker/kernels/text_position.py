"""Triton kernels of the text tracker: attention of its heads to the text, and the step of its filter."""

import triton
import triton.language as tl

# Text rows that a program of text_scores_kernel multiplies at once, and warps of one of text_position_kernel.
TOKENS, POSITION_WARPS = 64, 8


@triton.jit
def text_scores_kernel(
    qkv, norm, cos, sin, keys, page_table, slots, positions, text, heads, scores, stride_qkv, stride_pages,
    stride_fields, max_tokens, eps, scale, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, NUM_HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Products of a query with the keys of its slot's text, one row and head per program.

    `heads` int64 [heads of the layer, 2]: its number in `scores` [rows, NUM_HEADS, max_tokens], and the head.
    """
    row, which = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row)
    field = slot * stride_fields
    layout, start, count = tl.load(text + field), tl.load(text + field + 1), tl.load(text + field + 2)
    position = tl.load(positions + row)
    if layout > 0:
        number, head = tl.load(heads + 2 * which), tl.load(heads + 2 * which + 1)
        half = tl.arange(0, D // 2)
        query = qkv + row * stride_qkv + head * D + half
        first, second = tl.load(query).to(tl.float32), tl.load(query + D // 2).to(tl.float32)
        inverse = tl.rsqrt((tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / D + eps)
        first = first * inverse * tl.load(norm + half).to(tl.float32)
        second = second * inverse * tl.load(norm + D // 2 + half).to(tl.float32)
        c = tl.load(cos + position * (D // 2) + half).to(tl.float32)
        s = tl.load(sin + position * (D // 2) + half).to(tl.float32)
        rotated_first, rotated_second = first * c - second * s, second * c + first * s
        seen = tl.minimum(count, position + 1 - start)
        out = scores + (row * NUM_HEADS + number) * max_tokens
        for begin in range(0, seen, BLOCK):
            token = begin + tl.arange(0, BLOCK)
            inside = token < seen
            place = start + token
            page = tl.load(page_table + slot * stride_pages + place // PAGE, mask=inside, other=0)
            key = keys + ((page * PAGE + place % PAGE) * KV_HEADS + head // GROUP) * D
            at = key[:, None] + half[None, :]
            key_first = tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)
            key_second = tl.load(at + D // 2, mask=inside[:, None], other=0.0).to(tl.float32)
            products = key_first * rotated_first[None, :] + key_second * rotated_second[None, :]
            tl.store(out + token, tl.sum(products, axis=1) * scale, mask=inside)


@triton.jit
def text_position_kernel(
    scores, slots, positions, text, spoken, shares, moves, probability, stride_fields, max_tokens, floor, million,
    NUM_HEADS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """torch_tracking.TorchTracking.finish, one row per program; BLOCK covers `max_tokens`."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    field = slot * stride_fields
    layout, start, count = tl.load(text + field), tl.load(text + field + 1), tl.load(text + field + 2)
    seen = tl.minimum(count, tl.load(positions + row) + 1 - start)
    if (layout > 0) & (seen > 0):
        token = tl.arange(0, BLOCK)
        inside = token < count
        attention = tl.zeros([BLOCK], tl.float32)
        for number in tl.static_range(NUM_HEADS):
            at = scores + (row * NUM_HEADS + number) * max_tokens + token
            score = tl.load(at, mask=token < seen, other=-float("inf"))
            weight = tl.exp(score - tl.max(score, axis=0))
            attention += tl.load(shares + layout * NUM_HEADS + number) * weight / tl.sum(weight, axis=0)
        last, confidence = tl.load(spoken + field), tl.load(spoken + field + 1)
        moved = tl.zeros([BLOCK], tl.float32)
        for step in tl.static_range(STEPS):
            source = token - step
            before = tl.load(probability + slot * max_tokens + source, mask=inside & (source >= 0), other=0.0)
            # Nothing was observed since the slot was opened: the token is certain.
            before = tl.where(confidence < 0, tl.where(source == last, 1.0, 0.0), before)
            moved += tl.load(moves + layout * STEPS + step) * before
        found = tl.where(inside, moved * (attention + floor / count), 0.0)
        found = found / tl.sum(found, axis=0)
        best = tl.maximum(last, tl.argmax(found, axis=0).to(tl.int64))
        near = tl.sum(tl.where((token >= best - 1) & (token <= best + 1), attention, 0.0), axis=0)
        # Other threads read the probabilities that this one writes.
        tl.debug_barrier()
        tl.store(probability + slot * max_tokens + token, found, mask=token < max_tokens)
        tl.store(spoken + field, best)
        tl.store(spoken + field + 1, (near * million).to(tl.int64))
