"""The gate's kernel in Triton's interpreter against PyTorch (tests/gpu runs the compiled kernel)."""

import pytest
import torch

from qwen3_tts_engine.talker.ops.interface import Hidden
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps
from qwen3_tts_engine.talker.weights import NormLinear

pytest.importorskip("triton", reason="Triton is not installed")
EPS = 1e-6


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the compiled kernel")
@pytest.mark.parametrize(("inputs", "outputs"), [(2048, 6144), (96, 40)])
def test_gate_norms_what_it_reads(inputs: int, outputs: int) -> None:
    """Rows have a stride, and their products are far from normed."""
    from qwen3_tts_engine.talker.kernels.rowwise import gate_kernel

    torch.manual_seed(0)
    x, weight = 30 * torch.randn(3, 2, inputs)[:, 1], torch.randn(2 * outputs, inputs) / inputs**0.5
    expected = TorchOps().norm_gated(Hidden(x), NormLinear(torch.ones(inputs), weight), EPS)
    found, block = torch.empty(3, outputs), 1024
    gate_kernel[(3, -(-outputs // block))](
        x, x @ weight.T, found, x.stride(0), EPS,
        INPUTS=inputs, X_BLOCK=2048, WIDTH=outputs, BLOCK=block, PDL=False,
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
