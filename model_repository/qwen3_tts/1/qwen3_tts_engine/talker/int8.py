"""Int8 in products: each block of a matrix's row in steps of its largest magnitude / 127."""

import torch
from torch import Tensor
from torch.nn import functional

# Columns of a block. In larger ones ONNX Runtime's kernels sum one row in another order than several.
BLOCK = 64
LEVELS = 127
# The largest magnitude of a block of zeros, which divides it.
LEAST = 1e-30


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [rows, columns] as int8 [rows, blocks, BLOCK], padded with zeros, and their steps float32 [rows, blocks]."""
    blocks = _blocks(rows)
    step = _step(blocks)
    return (blocks / step).round_().to(torch.int8), step.squeeze(-1)


def rounded(rows: Tensor) -> Tensor:
    """What int8 keeps of float32 rows [..., columns]."""
    blocks = _blocks(rows)
    step = _step(blocks)
    return (blocks / step).round_().mul_(step).flatten(-2)[..., : rows.shape[-1]]


def _blocks(rows: Tensor) -> Tensor:
    padded = functional.pad(rows.float(), (0, -rows.shape[-1] % BLOCK))
    return padded.reshape(*rows.shape[:-1], -1, BLOCK)


def _step(blocks: Tensor) -> Tensor:
    low, high = blocks.aminmax(dim=-1, keepdim=True)
    return torch.maximum(high, -low).clamp(min=LEAST) / LEVELS
