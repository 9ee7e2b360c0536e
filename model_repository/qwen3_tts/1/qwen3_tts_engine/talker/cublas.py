"""Whether cuBLAS computes whole products on a GPU."""

from functools import cache

import torch

# Rows, outputs and inputs of products of 1.7B, some of a prefill. With 52 of an H200's 132 multiprocessors 14 of 16 of
# such products were wrong (cuBLAS 13.0).
PRODUCTS = ((24, 4096, 2048), (64, 2048, 2048), (48, 12288, 2048), (512, 2048, 6144), (2048, 4096, 2048))
PARTIAL = (
    "cuBLAS leaves outputs of its products unwritten on this GPU, as it does on a Hopper of which a process has a part "
    "(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)"
)


@cache
@torch.inference_mode()
def is_whole(device: torch.device) -> bool:
    """Whether every output is written, and right: each row of weights selects one input, so products are exact."""
    return all(_selects(*product, device) for product in PRODUCTS)


def _selects(rows: int, outputs: int, inputs: int, device: torch.device) -> bool:
    x = torch.randn(rows, inputs, dtype=torch.bfloat16, device=device)
    selected = torch.arange(outputs, device=device) % inputs
    weight = x.new_zeros(outputs, inputs).scatter_(1, selected[:, None], 1.0)
    out = torch.full((rows, outputs), torch.nan, dtype=x.dtype, device=device)
    torch.mm(x, weight.T, out=out)
    return torch.equal(out, x[:, selected])
