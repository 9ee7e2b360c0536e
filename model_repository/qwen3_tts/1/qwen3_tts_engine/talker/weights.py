"""Matrices that rows are multiplied by: as the checkpoint has them, or rounded to FP8."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Matrix:
    """[outputs, inputs]. With `codes`, `dense` is codes · unit, exactly."""

    dense: Tensor
    codes: Tensor | None = None
    unit: float = 1.0

    @classmethod
    def rounded(cls, weight: Tensor) -> "Matrix":
        """Rounded to E4M3 codes times a power of two.

        Such a product is a bfloat16, so that who reads `dense` computes with the same numbers as who reads `codes`. One
        unit serves all rows: E4M3 keeps its precision down to 2^-14 of the largest weight.
        """
        largest = float(weight.abs().max())
        unit = 2.0 ** math.ceil(math.log2(largest / torch.finfo(FP8).max)) if largest else 1.0
        codes = (weight.float() / unit).to(FP8)
        return cls((codes.float() * unit).to(weight.dtype), codes, unit)


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Projections that read the same input are stacked: qkv [(q + 2 kv) heads·D, H], gate_up [2·I, H]."""

    input_norm: Tensor
    qkv: Matrix
    q_norm: Tensor
    k_norm: Tensor
    output: Matrix
    post_norm: Tensor
    gate_up: Matrix
    down: Matrix
