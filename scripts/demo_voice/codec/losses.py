"""Distances between two sounds: log-mel and log spectra at five resolutions."""

import math

import torch
from torch import Tensor, nn

from scripts.demo_voice.sizes import RATE

# Window and mel bands.
SCALES = ((2048, 128), (1024, 80), (512, 48), (256, 24), (128, 12))
LINEAR, LINEAR_WEIGHT = (1024, 512), 0.3
QUIETEST = 1e-4


class SpectralLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.banks = nn.ParameterList(nn.Parameter(mel_bank(n, mels), requires_grad=False) for n, mels in SCALES)
        self.windows = nn.ParameterList(nn.Parameter(torch.hann_window(n), requires_grad=False) for n, _ in SCALES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Samples [batch, time]"""
        total = x.new_zeros(())
        for bank, window in zip(self.banks, self.windows, strict=True):
            a, b = magnitudes(x, window), magnitudes(y, window)
            total = total + (log(bank @ a) - log(bank @ b)).abs().mean()
            if len(window) in LINEAR:
                total = total + LINEAR_WEIGHT * (log(a) - log(b)).abs().mean()
        return total / len(SCALES)


def magnitudes(x: Tensor, window: Tensor) -> Tensor:
    n = len(window)
    spectrum = torch.stft(x, n, n // 4, n, window, center=True, return_complex=True)
    return (spectrum.real.square() + spectrum.imag.square() + 1e-12).sqrt() / (n / 4)


def log(x: Tensor) -> Tensor:
    return x.clamp(min=QUIETEST).log()


def mel_bank(n: int, mels: int) -> Tensor:
    """[mels, n / 2 + 1], each band's weights sum to 1."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, mels + 2) / 2595) - 1)
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bins = torch.linspace(0, RATE / 2, n // 2 + 1)
    bank = torch.minimum((bins - lower) / (centre - lower), (upper - bins) / (upper - centre)).clamp(min=0)
    return bank / bank.sum(1, keepdim=True).clamp(min=1e-3)
