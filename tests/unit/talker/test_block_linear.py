"""block_linear in Triton's interpreter against PyTorch, and its forms (tests/gpu runs the compiled kernel)."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qwen3_tts_engine.talker.kernels.linear import by_rows

pytest.importorskip("triton", reason="Triton is not installed")
EPS = 1e-6
# Multiprocessors and shared memory of a block: H200, A100, L4, RTX 5090.
GPUS = {"H200": (132, 227), "A100": (108, 163), "L4": (58, 99), "RTX 5090": (170, 99)}
LAYERS = [(4096, 2048, 0), (2048, 2048, 0), (6144, 2048, 1), (2048, 6144, 0), (3072, 1024, 1), (1024, 3072, 0)]
EPILOGUES = {
    "norm": {"NORM": 1},
    "gated": {"NORM": 1, "GATED": 1},
    "residual": {"RESIDUAL": 1},
    "logits": {"NORM": 1, "FLOAT_OUT": 1},
    "bias": {"NORM": 1, "BIAS": 1},
    "plain": {},
}


def gpu(processors: int, kibibytes: int) -> Any:
    return SimpleNamespace(multi_processor_count=processors, shared_memory_per_block_optin=kibibytes * 1024)


def expected_of(x: Any, weight: Any, flags: dict[str, int], squares: Any, bias: Any, before: Any) -> torch.Tensor:
    """The result in float64; the interpreter cannot multiply bfloat16: only what the epilogue rounds is rounded."""
    value: torch.Tensor = x.double() @ weight.double().T
    if "NORM" in flags:
        value *= torch.rsqrt(squares.double().sum(0) / x.shape[1] + EPS)[:, None]
    if "BIAS" in flags:
        value += bias.double()
    if "GATED" in flags:
        gate, up = value.chunk(2, dim=1)
        value = torch.nn.functional.silu(gate) * up
    return value + before.double() if "RESIDUAL" in flags else value


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the compiled kernel")
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("split", [1, 4])
def test_blocks_agree_with_pytorch(monkeypatch: pytest.MonkeyPatch, epilogue: str, split: int) -> None:
    """Rows with a stride that do not fill their blocks; the second call finds the first one's counts at zero."""
    from qwen3_tts_engine.talker.kernels import block_linear

    partials, arrived = torch.full((64 * 2 * 64 * 32,), torch.nan), torch.zeros(64, dtype=torch.int32)
    monkeypatch.setattr(block_linear, "scratch", lambda device: (partials, arrived))
    torch.manual_seed(0)
    flags, outputs, inputs, rows = EPILOGUES[epilogue], 128, 256, 41
    gated = flags.get("GATED", 0)
    x, bias = torch.randn(rows, 2, inputs)[:, 1], torch.randn(outputs)
    weight = torch.randn(outputs * (1 + gated), inputs) / inputs**0.5
    squares = x.square().view(rows, 4, 64).sum(2).T
    form = block_linear.BlockLinear(outputs, inputs, 32, 64, split, 32, 4, **flags)
    for _ in range(2):
        before = torch.randn(rows, outputs)
        out = before.clone()
        sums = form.launch(x, weight, out, squares, bias, EPS)
        expected = expected_of(x, weight, flags, squares, bias, before)
        # The interpreter truncates to bfloat16.
        assert float((out.double() - expected).norm() / expected.norm()) < (1.5e-2 if gated else 8e-3)
        assert not arrived.any()
        if "RESIDUAL" in flags:
            assert sums is not None
            torch.testing.assert_close(sums.sum(0), out.square().sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize(("outputs", "inputs", "gated"), LAYERS)
def test_forms_fit_the_gpu_and_the_scratch(name: str, outputs: int, inputs: int, gated: int) -> None:
    from qwen3_tts_engine.talker.kernels.block_linear import MOST_ROWS, OUTPUTS, ROWS, SPLIT_LONG_UP_TO, block_linear

    processors, kibibytes = GPUS[name]
    for rows in (17, 33, 64, 65, 128, 256, 257, 512, 513, 1024, 8192):
        form = block_linear(outputs, inputs, rows, gpu(processors, kibibytes), GATED=gated)
        assert form is not None
        assert by_rows(ROWS, rows, MOST_ROWS) == form.ROWS
        assert form.shared_bytes <= kibibytes * 1024
        assert outputs % form.OUTPUTS == inputs % (form.SPLIT * form.STEP) == 0
        blocks = form.tiles(rows) * form.SPLIT
        if form.SPLIT > 1:
            assert blocks <= int(SPLIT_LONG_UP_TO * processors)
            assert (1 + gated) * form.OUTPUTS * form.ROWS <= 2 * OUTPUTS * MOST_ROWS


def test_a_product_that_blocks_do_not_divide_has_no_form() -> None:
    from qwen3_tts_engine.talker.kernels.block_linear import block_linear

    assert block_linear(72, 128, 32, gpu(132, 227)) is None
    assert block_linear(64, 48, 32, gpu(132, 227)) is None
