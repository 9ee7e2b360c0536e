"""SnakeBeta inside other kernels."""

import triton
import triton.language as tl


@triton.jit
def snake(x, alpha, inverse_beta, FAST: tl.constexpr):
    """x + sin²(αx) / β of FP32 values; FAST uses the hardware sine, which requires a small angle."""
    angle = x * alpha
    # sin² has period π; the first part of π has few enough digits for an exact product. Adding 1.5 · 2²³ rounds to a
    # whole number, faster than a conversion does.
    turns = (angle * 0.3183098861837907 + 12582912.0) - 12582912.0
    angle = angle - turns * 3.140625 - turns * 0.0009676535897932
    if FAST:
        sine = tl.inline_asm_elementwise(
            "sin.approx.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        sine = tl.sin(angle)
    return x + sine * sine * inverse_beta
