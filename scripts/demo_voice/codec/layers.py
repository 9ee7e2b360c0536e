"""Layers of the codec with the released names of tensors. Sequences are [batch, channels, 1, time].

The singleton dimension lets convolutions run channels-last.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LAYER_NORM_EPS = 1e-6
Json = dict[str, Any]


class Conv(nn.Module):
    """Causal: pads the past with zeros, or with the first sample."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        replicate: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, dilation=dilation, groups=groups, bias=bias)
        self.past = (kernel - 1) * dilation + 1 - stride
        self.stride, self.dilation, self.groups, self.replicate = stride, dilation, groups, replicate

    def forward(self, x: Tensor) -> Tensor:
        if self.replicate:
            x = torch.cat([x[..., :1].expand(*x.shape[:3], self.past), x], dim=3)
        elif self.past:
            x = functional.pad(x, (self.past, 0))
        weight, bias = self.conv.weight.unsqueeze(2), self.conv.bias
        return functional.conv2d(x, weight, bias, (1, self.stride), 0, (1, self.dilation), self.groups)


class Transposed(nn.Module):
    """Each sample becomes `stride` samples; what depends on the future is cut off."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight.unsqueeze(2)
        y = functional.conv_transpose2d(x, weight, self.conv.bias, (1, self.stride))
        return y[..., : x.shape[3] * self.stride]


class ConvNeXt(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = Conv(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=LAYER_NORM_EPS)
        self.pwconv1, self.pwconv2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(functional.gelu(self.pwconv1(y)))
        summed: Tensor = x + y.permute(0, 3, 1, 2)
        return summed


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
        return y


class GatedMlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


def rotation(length: int, dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, dim / 2]."""
    exponents = torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim
    angles = torch.arange(length, device=device)[:, None] / theta**exponents
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of [..., time, dim], halves paired."""
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return rotated.to(x.dtype)
