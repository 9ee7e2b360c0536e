"""Row-wise Triton kernels: norm, gate, embedding sum, feedback of a frame."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def rms_norm_kernel(
    x, norm, out, stride_x, stride_out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < WIDTH
    if norm is not None:
        weight = tl.load(norm + column, mask=inside, other=0.0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    value = tl.load(x + row * stride_x + column, mask=inside, other=0.0)
    value32 = value.to(tl.float32)
    normed = (value32 * _inverse_rms(value32, WIDTH, eps)).to(value.dtype)
    if norm is not None:
        normed = (normed.to(tl.float32) * weight.to(tl.float32)).to(value.dtype)
    tl.store(out + row * stride_out + column, normed, mask=inside)


@triton.jit
def _inverse_rms(value, WIDTH: tl.constexpr, eps):
    return tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)


@triton.jit
def gate_kernel(
    x, gate_up, out, stride_x, eps, INPUTS: tl.constexpr, X_BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """SiLU(gate) · up; gate_up [rows, 2 WIDTH] are products of x [rows, INPUTS] before its RMSNorm → [rows, WIDTH]."""
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    x_column = tl.arange(0, X_BLOCK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    value = tl.load(x + row * stride_x + x_column, mask=x_column < INPUTS, other=0.0).to(tl.float32)
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    inverse = _inverse_rms(value, INPUTS, eps)
    gate, up = gate * inverse, up * inverse
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * WIDTH + column, gated.to(out.dtype.element_ty), mask=inside)


@triton.jit
def embed_kernel(table, indices, out, last, TERMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of TERMS rows of the table; index -1 is row `last`."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for term in tl.static_range(TERMS):
        index = tl.load(indices + row * TERMS + term)
        index = tl.where(index < 0, last, index)
        total += tl.load(table + index * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def advance_kernel(
    slots, codes, offsets, code_table, text_table, trailing, num_trailing, frames, positions, inputs, pad_text_id,
    stride_fields, max_trailing, padding_slot, CODEBOOKS: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """torch_ops.TorchRows.advance, one row per program."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    field = slot * stride_fields
    frame, position = tl.load(frames + field), tl.load(positions + field)
    fed = tl.load(trailing + field + tl.minimum(frame, max_trailing - 1))
    text = tl.where(frame < tl.load(num_trailing + field), fed, pad_text_id)
    column = tl.arange(0, WIDTH)
    added = tl.load(text_table + text * WIDTH + column)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    total = tl.zeros([WIDTH], tl.float32)
    for codebook in tl.static_range(CODEBOOKS):
        index = tl.load(codes + row * CODEBOOKS + codebook) + tl.load(offsets + codebook)
        total += tl.load(code_table + index * WIDTH + column).to(tl.float32)
    dtype = inputs.dtype.element_ty
    tl.store(inputs + slot * WIDTH + column, (total.to(dtype).to(tl.float32) + added.to(tl.float32)).to(dtype))
    tl.store(frames + field, frame + 1, mask=slot != padding_slot)
    tl.store(positions + field, position + 1, mask=slot != padding_slot)
