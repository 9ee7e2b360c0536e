"""Discriminators over periods of the waveform and over complex spectra."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

PERIODS = (2, 3, 5, 7, 11)
WINDOWS = (512, 1024, 2048)
PERIOD_WIDTHS, SPECTRUM_WIDTH = (16, 64, 128, 256), 24


class Judgement(NamedTuple):
    score: Tensor
    features: list[Tensor]


class Adversary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.judges = nn.ModuleList([*map(PeriodJudge, PERIODS), *map(SpectrumJudge, WINDOWS)])

    def forward(self, x: Tensor) -> list[Judgement]:
        """Samples [batch, time]"""
        return [judge(x) for judge in self.judges]


class PeriodJudge(nn.Module):
    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        widths = (1, *PERIOD_WIDTHS)
        layers = [nn.Conv2d(i, o, (5, 1), (3, 1), (2, 0)) for i, o in pairwise(widths)]
        self.layers = nn.ModuleList([*layers, nn.Conv2d(widths[-1], widths[-1], (5, 1), 1, (2, 0))])
        self.last = nn.Conv2d(widths[-1], 1, (3, 1), 1, (1, 0))

    def forward(self, x: Tensor) -> Judgement:
        whole = x.shape[1] // self.period * self.period
        return judge(self.layers, self.last, x[:, :whole].unflatten(1, (-1, self.period)).unsqueeze(1))


class SpectrumJudge(nn.Module):
    window: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(size))
        width = SPECTRUM_WIDTH
        layers = [nn.Conv2d(2, width, (3, 9), 1, (1, 4))]
        layers += [nn.Conv2d(width, width, (3, 9), (1, 2), (1, 4)) for _ in range(3)]
        self.layers = nn.ModuleList([*layers, nn.Conv2d(width, width, 3, 1, 1)])
        self.last = nn.Conv2d(width, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Judgement:
        size = len(self.window)
        spectrum = torch.stft(x.float(), size, size // 4, size, self.window, center=True, return_complex=True)
        planes = torch.stack([spectrum.real, spectrum.imag], 1) / size**0.5
        return judge(self.layers, self.last, planes.transpose(2, 3))


def judge(layers: nn.ModuleList, last: nn.Module, x: Tensor) -> Judgement:
    features = []
    for layer in layers:
        x = functional.leaky_relu(layer(x), 0.1)
        features.append(x)
    return Judgement(last(x), features)


def judging_loss(real: list[Judgement], copied: list[Judgement]) -> Tensor:
    losses = [(1 - r.score.float()).square().mean() + c.score.float().square().mean() for r, c in _pairs(real, copied)]
    return torch.stack(losses).mean()


def fooling_loss(copied: list[Judgement]) -> Tensor:
    return torch.stack([(1 - c.score.float()).square().mean() for c in copied]).mean()


def matching_loss(real: list[Judgement], copied: list[Judgement]) -> Tensor:
    """Difference between the features of both, relative to the real ones."""
    losses = []
    for r, c in _pairs(real, copied):
        for a, b in zip(r.features, c.features, strict=True):
            losses.append((a.float() - b.float()).abs().mean() / a.float().abs().mean().clamp(min=1e-3))
    return torch.stack(losses).mean()


def _pairs(real: list[Judgement], copied: list[Judgement]) -> list[tuple[Judgement, Judgement]]:
    return list(zip(real, copied, strict=True))
