"""The activation SnakeBeta, with a backward pass that keeps only its input."""

from typing import Any

import torch
from torch import Tensor, nn

SNAKE_EPS = 1e-9


class SnakeBeta(nn.Module):
    """x + sin²(x · e^α) / (e^β + 1e-9) of [batch, channels, 1, time]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        y: Tensor = SnakeFunction.apply(x, self.alpha.exp(), 1 / (self.beta.exp() + SNAKE_EPS))
        return y


class SnakeFunction(torch.autograd.Function):
    """Computed by kernels on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, inverse_beta: Tensor) -> Tensor:
        ctx.save_for_backward(x, alpha, inverse_beta)
        return (_kernels().forward if x.is_cuda else snake)(x, alpha, inverse_beta)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        found: tuple[Tensor, Tensor, Tensor]
        found = (_kernels().backward if gradient.is_cuda else snake_gradients)(gradient, *ctx.saved_tensors)
        return found


def snake(x: Tensor, alpha: Tensor, inverse_beta: Tensor) -> Tensor:
    exact = x.float()
    sine = torch.sin(exact * alpha.view(1, -1, 1, 1))
    return (exact + sine * sine * inverse_beta.view(1, -1, 1, 1)).to(x.dtype)


def snake_gradients(gradient: Tensor, x: Tensor, alpha: Tensor, inverse_beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    g, exact, a, b = gradient.float(), x.float(), alpha.view(1, -1, 1, 1), inverse_beta.view(1, -1, 1, 1)
    sine, cosine = torch.sin(exact * a), torch.cos(exact * a)
    slope = 2 * sine * cosine * b
    by_x = (g * (1 + slope * a)).to(x.dtype)
    return by_x, (g * slope * exact).sum((0, 2, 3)), (g * sine * sine).sum((0, 2, 3))


def _kernels() -> Any:
    # Imported here: Triton is not installed everywhere.
    from scripts.demo_voice.codec.kernels import snake as kernels

    return kernels
