"""The codec's kernels in Triton's interpreter against PyTorch (tests/gpu runs the compiled kernels)."""

from typing import Any

import pytest
import torch

from code2wav_step.torch_ops import TorchOps
from tests.fakes.codec_layers import CASES, Inputs, small_config

pytest.importorskip("triton", reason="Triton is not installed")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def kernel_ops() -> Any:
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs the compiled kernels")
    from code2wav_step.kernel_ops import KernelOps

    return KernelOps(small_config(), CPU)


@pytest.mark.parametrize("name", CASES)
def test_kernels_match_pytorch(kernel_ops: Any, name: str) -> None:
    config = small_config()
    expected, found = (
        CASES[name](ops, Inputs(CPU, torch.float32), config) for ops in (TorchOps(config, CPU), kernel_ops)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert all(torch.isfinite(tensor).all() for tensor in found)
