"""The folded weights of the step, as model.safetensors holds them.

The exporter folds normalisation weights, layer scales and consecutive linear layers into one matrix. Weights are
[outputs, taps · channels], so that they multiply a row of the input and those that follow it in memory. Matrices are
FP16, vectors FP32.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from code2wav_step.config import StepConfig
from code2wav_step.kernels.streamed_product import in_columns

LAYER_NORM_EPS = 1e-6
TRANSPOSED_TAPS = 2
VECTORS = ("bias", "alpha", "inverse_beta")
Activation = Literal["none", "gelu", "gated"]


@dataclass(frozen=True)
class Product:
    """A matrix product over `taps` rows, `dilation` apart, and its epilogue.

    With `norm_eps` the input row is divided by its root mean square. "gated" has gate rows, then as many up rows.
    `alpha` and `inverse_beta` belong to the SnakeBeta at the start of the next layer.
    """

    weight: Tensor
    bias: Tensor | None = None
    alpha: Tensor | None = None
    inverse_beta: Tensor | None = None
    taps: int = 1
    dilation: int = 1
    norm_eps: float | None = None
    activation: Activation = "none"

    @property
    def outputs(self) -> int:
        return len(self.weight) // 2 if self.activation == "gated" else len(self.weight)

    @cached_property
    def streamed(self) -> Tensor:
        """`weight` for streamed_product.cu."""
        return in_columns(self.weight, self.taps)


@dataclass(frozen=True)
class Depthwise:
    """A depthwise convolution [taps, channels] whose rows are then normalised to mean 0, variance 1."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class TransformerLayer:
    qkv: Product
    output: Product
    gate_up: Product
    down: Product


@dataclass(frozen=True)
class Upsample:
    """`product` turns one position into several; the rest is a ConvNeXt."""

    product: Product
    depthwise: Depthwise
    widen: Product
    narrow: Product


@dataclass(frozen=True)
class Unit:
    conv: Product
    pointwise: Product

    @cached_property
    def streamed(self) -> Tensor:
        """The weight of `conv` for streamed_product.cu, where it computes the whole unit."""
        return in_columns(self.conv.weight, self.conv.taps, ordered=True)


@dataclass(frozen=True)
class Block:
    transposed: Product
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class StepWeights:
    config: StepConfig
    codebooks: Tensor  # [quantizers · codes, channels]
    pre: Product
    layers: tuple[TransformerLayer, ...]
    upsamples: tuple[Upsample, ...]
    first: Product
    blocks: tuple[Block, ...]
    last: Depthwise  # weight [taps, channels] of the one output, bias [1]


def load(path: Path, device: torch.device, dtype: torch.dtype) -> StepWeights:
    """Matrices in `dtype`. Raises ValueError naming the file if it is not an exported step or lacks a tensor."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            config = StepConfig.from_metadata(file.metadata())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return assemble(config, tensors, dtype)
    except KeyError as error:
        raise ValueError(f"{path}: tensor {error} is missing") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def assemble(config: StepConfig, tensors: dict[str, Tensor], dtype: torch.dtype) -> StepWeights:
    """Raises KeyError for a missing tensor."""

    def product(
        name: str, taps: int = 1, dilation: int = 1, eps: float | None = None, activation: Activation = "none"
    ) -> Product:
        weight = tensors[f"{name}.weight"].to(dtype).contiguous()
        found = ((vector, tensors.get(f"{name}.{vector}")) for vector in VECTORS)
        vectors: dict[str, Any] = {vector: t.float().contiguous() for vector, t in found if t is not None}
        return Product(weight, **vectors, taps=taps, dilation=dilation, norm_eps=eps, activation=activation)

    def depthwise(name: str) -> Depthwise:
        return Depthwise(*(tensors[f"{name}.{part}"].float().contiguous() for part in ("weight", "bias")))

    def layer(i: int) -> TransformerLayer:
        name, eps = f"layers.{i}", config.rms_norm_eps
        gate_up = product(f"{name}.gate_up", eps=eps, activation="gated")
        return TransformerLayer(
            product(f"{name}.qkv", eps=eps), product(f"{name}.output"), gate_up, product(f"{name}.down")
        )

    def upsample(i: int) -> Upsample:
        name = f"upsample.{i}"
        up = product(f"{name}.product", eps=None if i else config.rms_norm_eps)
        widen = product(f"{name}.widen", activation="gelu")
        return Upsample(up, depthwise(f"{name}.depthwise"), widen, product(f"{name}.narrow"))

    def unit(name: str, dilation: int) -> Unit:
        return Unit(product(f"{name}.conv", config.conv_kernel, dilation), product(f"{name}.pointwise"))

    def block(i: int) -> Block:
        name = f"blocks.{i}"
        units = tuple(unit(f"{name}.units.{j}", dilation) for j, dilation in enumerate(config.residual_dilations))
        return Block(product(f"{name}.transposed", TRANSPOSED_TAPS), units)

    return StepWeights(
        config=config,
        codebooks=tensors["codebooks"].to(dtype).contiguous(),
        pre=product("pre", config.pre_conv_kernel),
        layers=tuple(layer(i) for i in range(config.num_layers)),
        upsamples=tuple(upsample(i) for i in range(len(config.upsampling_ratios))),
        first=product("first", config.conv_kernel),
        blocks=tuple(block(i) for i in range(len(config.upsample_rates))),
        last=depthwise("last"),
    )
