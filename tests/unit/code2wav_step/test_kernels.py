"""The codec's kernels in Triton's interpreter against PyTorch (tests/gpu runs the compiled kernels)."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from code2wav_step.device_rows import row_addresses
from code2wav_step.kernels import resident_unit
from code2wav_step.torch_ops import TorchOps
from code2wav_step.weights import Product
from tests.fakes.codec_layers import CASES, Inputs, small_config

pytest.importorskip("triton", reason="Triton is not installed")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def kernel_ops() -> Any:
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs the compiled kernels")
    from code2wav_step.kernel_ops import KernelOps

    return KernelOps(small_config(), CPU)


# It has several tiles for every group of a block, and takes most of a minute.
LARGEST = "unit 96 of 14784 positions, dilation 9"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n == LARGEST)) for n in CASES])
def test_kernels_match_pytorch(kernel_ops: Any, name: str) -> None:
    config = small_config()
    expected, found = (
        CASES[name](ops, Inputs(CPU, torch.float32), config) for ops in (TorchOps(config, CPU), kernel_ops)
    )
    # Sums of up to 7168 products in another order, which also differs between CPUs.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=3e-5)
    assert all(torch.isfinite(tensor).all() for tensor in found)


@pytest.mark.parametrize("after", [[6, 0, 3, 4], [1, 7, 5, 2]], ids=["in place", "elsewhere"])
def test_states_at_addresses(kernel_ops: Any, after: list[int]) -> None:
    config, before, frames = small_config(), [6, 0, 3, 4], 5
    inputs = Inputs(CPU, torch.float32)
    states, qkv = inputs.normal(8, config.state_size), inputs.normal(4, frames, 3 * 128)
    history = torch.full((4, 1), config.window, dtype=torch.int32)
    expected = states.clone()
    addressed = type(kernel_ops)(config, CPU)
    assert addressed.address_states(torch.from_numpy(row_addresses(states, np.array([before, after]))))

    def run(ops: Any, state: torch.Tensor, state_out: torch.Tensor) -> torch.Tensor:
        sequences = ops.open(state, frames)
        for name, sequence in sequences.items():
            sequence[:, config.pieces[name].shape[1] :] = 1.0
        attended: torch.Tensor = ops.attend(qkv, 1, state, history, state_out)
        ops.close(sequences, state_out)
        return attended

    expected_out = states[after]
    expected_attended = run(TorchOps(config, CPU), states[before], expected_out)
    expected[after] = expected_out
    placeholder = torch.zeros(4, config.state_size)
    assert addressed.next_state(placeholder) is placeholder
    torch.testing.assert_close(run(addressed, placeholder, placeholder), expected_attended, rtol=1e-4, atol=1e-5)
    assert torch.equal(states, expected)
    assert not placeholder.any()


def test_pcm_of_rows_of_which_one_overflowed(kernel_ops: Any) -> None:
    waveform = Inputs(CPU, torch.float32).normal(4, 5000)
    waveform[0, :4] = torch.tensor([0.5, 1.5, 2.5, -0.5]) / small_config().contract.pcm_scale
    waveform[1, -1], waveform[2, 7] = torch.nan, -torch.inf
    found, expected = (ops.to_int16(waveform) for ops in (kernel_ops, TorchOps(small_config(), CPU)))
    overflowed = waveform.isfinite().logical_not()
    assert torch.equal(found[~overflowed], expected[~overflowed])
    assert found[1:3, :2].tolist() == [[small_config().contract.no_sample, 0]] * 2


def test_a_cuda_kernel_is_built_once_and_not_launched(kernel_ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[Any, ...]] = []
    compiler = SimpleNamespace(architecture=lambda: "sm_90a", compiled=lambda *parts: built.append(parts))
    monkeypatch.setitem(sys.modules, "code2wav_step.kernels.cuda_module", compiler)
    monkeypatch.setattr(resident_unit, "processors", lambda: 132)
    ops, layer = type(kernel_ops)(small_config(), CPU), Product(torch.eye(64))
    ops.build(lambda: [ops.product(torch.zeros(1, rows, 64), layer) for rows in (3, 4, 12)])
    assert {source for source, *_ in built} == {"skinny_product.cu"}
    assert sorted(macros["OCTETS"] for _, macros, _ in built) == [1, 2]
    monkeypatch.setattr(compiler, "compiled", lambda *parts: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ops.build(lambda: ops.product(torch.zeros(1, 3, 64), layer))


def test_snake_of_large_angles(kernel_ops: Any) -> None:
    """Exact to 2e-4, where FP16 rounds results to 1e-3 and more: FP32 knows an angle of 1 000 to 6e-5."""
    x, alpha = torch.linspace(-20, 20, 64 * 64).view(1, 64, 64), torch.linspace(0.01, 50, 64)
    layer = Product(torch.eye(64), alpha=alpha, inverse_beta=torch.ones(64))
    active = kernel_ops.product(x, layer, active=torch.empty_like(x))
    exact = x.double() + (x.double() * alpha).sin().square()
    torch.testing.assert_close(active.double(), exact, rtol=0, atol=2e-4)
