"""Layers of the codec step. Sequences are [batch, channels, time], hidden states [batch, time, channels].

A causal layer takes `past`, the tail of its previous input, and returns its output and the next `past`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from qwen3_tts_engine.checkpoint.configs import RESIDUAL_DILATIONS

# As in the released class.
LAYER_NORM_EPS = 1e-6
SNAKE_EPS = 1e-9


@dataclass(frozen=True)
class Weights:
    """The released tensors under a prefix, in the dtype of the step."""

    tensors: Mapping[str, Tensor]
    dtype: torch.dtype
    prefix: str = ""

    def under(self, name: str | int) -> "Weights":
        return Weights(self.tensors, self.dtype, f"{self.prefix}{name}.")

    def __getitem__(self, name: str) -> Tensor:
        return self.exact(name).to(self.dtype)

    def exact(self, name: str) -> Tensor:
        """The tensor in FP32, for what lower precision would break."""
        return self.tensors[self.prefix + name].float()


class Linear(nn.Module):
    def __init__(self, weights: Weights, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Buffer(weights["weight"])
        self.bias = nn.Buffer(weights["bias"]) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class CausalConv(nn.Module):
    def __init__(self, weights: Weights, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Buffer(weights["weight"])
        self.bias = nn.Buffer(weights["bias"])
        self.dilation, self.groups = dilation, groups

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([past, x], dim=2)
        y = functional.conv1d(joined, self.weight, self.bias, dilation=self.dilation, groups=self.groups)
        return y, joined[:, :, -past.shape[2] :]


class Upsample(nn.Module):
    """A transposed convolution with kernel = stride: each sample becomes `factor` samples independently."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        inputs, outputs, self.factor = weights["weight"].shape
        self.weight = nn.Buffer(weights["weight"].permute(1, 2, 0).reshape(outputs * self.factor, inputs))
        self.bias = nn.Buffer(weights["bias"][:, None])

    def forward(self, x: Tensor) -> Tensor:
        return interleave(self.weight @ x, self.factor) + self.bias


class TransposedConv(nn.Module):
    """A transposed convolution with kernel = 2 · stride, as one product with the previous and the current sample."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        inputs, outputs, kernel = weights["weight"].shape
        self.rate = kernel // 2
        current, previous = weights["weight"].split(self.rate, dim=2)
        taps = torch.cat([previous, current]).permute(1, 2, 0)
        self.weight = nn.Buffer(taps.reshape(outputs * self.rate, 2 * inputs))
        self.bias = nn.Buffer(weights["bias"][:, None])

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([past, x], dim=2)
        pairs = torch.cat([joined[:, :, :-1], x], dim=1)
        return interleave(self.weight @ pairs, self.rate) + self.bias, joined[:, :, -1:]


def interleave(x: Tensor, rate: int) -> Tensor:
    """[batch, channels * rate, time] -> [batch, channels, time * rate]"""
    phases: Tensor = x.unflatten(1, (-1, rate))
    return phases.transpose(2, 3).flatten(2)


class SnakeBeta(nn.Module):
    """x + sin²(αx) / β, always in FP32: in less, the sine's argument is off by whole periods."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.alpha = nn.Buffer(weights.exact("alpha").exp()[:, None])
        self.inverse_beta = nn.Buffer((1 / (weights.exact("beta").exp() + SNAKE_EPS))[:, None])

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        sine = torch.sin(exact * self.alpha)
        # A product: Pow is slow where it is not fused.
        return (exact + sine * sine * self.inverse_beta).to(x.dtype)


class ConvNeXt(nn.Module):
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        channels = weights["gamma"].numel()
        self.depthwise = CausalConv(weights.under("dwconv.conv"), groups=channels)
        self.norm_weight = nn.Buffer(weights.exact("norm.weight"))
        self.norm_bias = nn.Buffer(weights.exact("norm.bias"))
        self.widen = Linear(weights.under("pwconv1"), bias=True)
        self.narrow = Linear(weights.under("pwconv2"), bias=True)
        self.gamma = nn.Buffer(weights["gamma"])

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        y, past = self.depthwise(x, past)
        y = y.transpose(1, 2).float()
        y = functional.layer_norm(y, self.norm_weight.shape, self.norm_weight, self.norm_bias, LAYER_NORM_EPS)
        y = self.gamma * self.narrow(functional.gelu(self.widen(y.to(x.dtype))))
        return x + y.transpose(1, 2), past


class ResidualUnit(nn.Module):
    def __init__(self, weights: Weights, dilation: int) -> None:
        super().__init__()
        self.snake_in = SnakeBeta(weights.under("act1"))
        self.conv = CausalConv(weights.under("conv1.conv"), dilation=dilation)
        self.snake_out = SnakeBeta(weights.under("act2"))
        pointwise = weights.under("conv2.conv")
        self.weight, self.bias = nn.Buffer(pointwise["weight"]), nn.Buffer(pointwise["bias"])

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        y, past = self.conv(self.snake_in(x), past)
        return x + functional.conv1d(self.snake_out(y), self.weight, self.bias), past


class DecoderBlock(nn.Module):
    """One upsampling stage of the waveform decoder; its pasts are the transposed convolution's, then the units'."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.snake = SnakeBeta(weights.under(0))
        self.transposed = TransposedConv(weights.under("1.conv"))
        self.units = nn.ModuleList(
            ResidualUnit(weights.under(i), dilation) for i, dilation in enumerate(RESIDUAL_DILATIONS, start=2)
        )

    def forward(self, x: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        x, transposed = self.transposed(self.snake(x), pasts[0])
        nexts = [transposed]
        for unit, past in zip(self.units, pasts[1:], strict=True):
            x, past = unit(x, past)
            nexts.append(past)
        return x, nexts
