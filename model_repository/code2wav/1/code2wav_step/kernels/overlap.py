"""Starting a kernel while the one before it ends (Hopper and later)."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_inputs(OVERLAP: tl.constexpr):
    """First in every kernel: nothing that another kernel wrote may be read, and nothing written, before this."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
