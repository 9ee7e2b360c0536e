"""Weights of a transformer layer."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Projections that read the same input are stacked: qkv [(q + 2 kv) heads·D, H], gate_up [2·I, H]."""

    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    output: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
