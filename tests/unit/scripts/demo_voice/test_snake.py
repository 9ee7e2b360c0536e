"""The activation's gradients, and its kernels in Triton's interpreter."""

import pytest
import torch

from scripts.demo_voice.codec.snake import SnakeBeta, snake, snake_gradients

Arguments = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture
def arguments() -> Arguments:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gradient, x = (torch.randn(2, 32, 1, 700).contiguous(memory_format=torch.channels_last) for _ in range(2))
    return gradient.to(device), x.to(device), torch.rand(32, device=device) + 0.5, torch.rand(32, device=device) + 0.5


def test_gradients_are_exact() -> None:
    torch.manual_seed(0)
    module, x = SnakeBeta(4).double(), torch.randn(2, 4, 1, 5, requires_grad=True)
    with torch.no_grad():
        module.alpha.normal_()
        module.beta.normal_()
    weights = torch.randn(2, 4, 1, 5)
    (module(x) * weights).sum().backward()
    found = [x.grad, module.alpha.grad, module.beta.grad]
    x2, alpha, beta = (tensor.detach().clone().requires_grad_() for tensor in (x, module.alpha, module.beta))
    sine = torch.sin(x2 * alpha.exp().view(1, -1, 1, 1))
    ((x2 + sine * sine / (beta.exp() + 1e-9).view(1, -1, 1, 1)) * weights).sum().backward()
    for gradient, expected in zip(found, (x2.grad, alpha.grad, beta.grad), strict=True):
        assert gradient is not None
        assert expected is not None
        torch.testing.assert_close(gradient.double(), expected.double(), rtol=1e-4, atol=1e-5)


def test_kernels_match_pytorch(arguments: Arguments) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from scripts.demo_voice.codec.kernels import snake as kernels

    torch.testing.assert_close(kernels.forward(*arguments[1:]), snake(*arguments[1:]))
    for found, expected in zip(kernels.backward(*arguments), snake_gradients(*arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
