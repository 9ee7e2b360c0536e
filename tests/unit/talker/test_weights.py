"""Rounding to FP8: both forms of a matrix are the same numbers, and only the layers' are rounded."""

from pathlib import Path

import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.weights import FP8, Matrix
from scripts.benchmarks import rounding_error


@pytest.mark.parametrize("largest", [1e-3, 0.4, 1.0, 448.0, 449.0, 3e4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_codes_and_dense_are_the_same_numbers(largest: float, dtype: torch.dtype) -> None:
    weight = torch.randn(64, 96)
    weight = (weight / weight.abs().max() * largest).to(dtype)
    rounded = Matrix.rounded(weight)
    assert rounded.codes is not None
    assert (rounded.dense.dtype, rounded.codes.dtype) == (dtype, FP8)
    assert torch.equal(rounded.dense.double(), rounded.codes.double() * rounded.unit)
    # E4M3 has three bits of fraction; below 2^-6 its steps stay the same.
    step = (weight.double().abs() / 16).clamp(min=rounded.unit * 2.0**-10)
    assert ((rounded.dense.double() - weight.double()).abs() <= step).all()
    assert torch.equal(Matrix.rounded(rounded.dense).dense, rounded.dense)


def test_zeros() -> None:
    assert not Matrix.rounded(torch.zeros(2, 3)).dense.any()


def test_layers_are_rounded_and_heads_are_not(tiny_checkpoint: Path) -> None:
    config = EngineConfig(checkpoint=str(tiny_checkpoint), quantization="fp8", max_streams=1, max_frames_limit=128)
    runner = load_runner(Checkpoint.open(config.checkpoint), config, torch.device("cpu"))
    for transformer in (runner._talker.transformer, runner._predictor.transformer):
        for layer in transformer.layers:
            assert all(matrix.codes is not None for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down))
    assert all(head.codes is None for head in (runner._talker.head, *runner._predictor.heads))


def test_what_rounding_does_is_told(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounding_error.main(str(tiny_checkpoint), prompts=4, device="cpu")
    told = {
        cells[1]: float(cells[2]) for line in capsys.readouterr().out.splitlines() if len(cells := line.split("│")) > 4
    }
    arithmetic, weights = (distance for name, distance in told.items())
    assert 0 < arithmetic < weights < 0.1
