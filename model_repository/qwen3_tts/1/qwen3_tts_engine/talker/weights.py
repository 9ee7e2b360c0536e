"""Weights of a transformer layer."""

from dataclasses import dataclass

from torch import Tensor


def is_of_layer(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a checkpoint is the weight of a layer's product."""
    return ".layers." in name and tensor.ndim > 1


@dataclass(frozen=True)
class NormLinear:
    """RMSNorm, and weight [outputs, inputs] of the product after it; without `norm` it includes the norm's weights."""

    norm: Tensor | None
    weight: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Projections that read the same input are stacked: qkv [(q + 2 kv) heads·D, H], gate_up [2·I, H]."""

    qkv: NormLinear
    q_norm: Tensor
    k_norm: Tensor
    output: Tensor
    gate_up: NormLinear
    down: Tensor
