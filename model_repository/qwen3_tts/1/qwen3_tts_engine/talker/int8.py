"""Int8 in products: each row of a matrix in steps of its largest magnitude / 127."""

import torch
from torch import Tensor

LEVELS = 127
# The largest magnitude of a row of zeros, which divides it.
LEAST = 1e-30


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [..., columns] as int8, and the step of each, float32 [..., 1]."""
    rows = rows.float()
    step = _step(rows)
    return (rows / step).round_().to(torch.int8), step


def rounded(rows: Tensor) -> Tensor:
    """What int8 keeps of float32 rows [..., columns]."""
    step = _step(rows)
    return (rows / step).round_().mul_(step)


def _step(rows: Tensor) -> Tensor:
    low, high = rows.aminmax(dim=-1, keepdim=True)
    return torch.maximum(high, -low).clamp(min=LEAST) / LEVELS
