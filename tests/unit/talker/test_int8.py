"""Graphs with int8 weights: near PyTorch in FP32, each row alone, and refused where they cannot serve."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import ConfigError, EngineConfig
from qwen3_tts_engine.talker import int8, onnx_runner
from qwen3_tts_engine.talker.cpu import PROCESS_BYTES, needed_bytes
from qwen3_tts_engine.talker.golden import Cases, distance
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.onnx_graph import OnnxGraph
from qwen3_tts_engine.talker.onnx_runner import OnnxTalkerRunner
from qwen3_tts_engine.talker.proof import ROUNDINGS, TalkerProofError
from tests.conftest import CheckpointOf
from tests.unit.talker.test_onnx_runner import FRAMES, SAMPLINGS, SLOTS, newcomer, speak

CPU = torch.device("cpu")
INPUTS, OUTPUTS, ROWS = 200, 320, 33


@pytest.fixture(scope="module")
def checkpoint(checkpoint_of: CheckpointOf) -> Checkpoint:
    return Checkpoint.open(str(checkpoint_of("custom_voice")))


def load(checkpoint: Checkpoint, device: torch.device = CPU, **settings: Any) -> Any:
    sizes = {"max_streams": SLOTS, "max_text_tokens": 256, "max_frames_limit": 64, "part_text_tokens": 0}
    fields = {"checkpoint": str(checkpoint.folder), "cpu_weights": "int8", **sizes, **settings}
    return load_runner(checkpoint, EngineConfig.model_validate(fields), device)


@pytest.fixture(scope="module")
def product() -> tuple[Any, Tensor]:
    """A graph of one product, `out` = `rows` @ weight.T, and its weight, some outputs of which are far larger."""
    weight = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(0))
    weight[::7] *= 100
    weight[3] = 0
    graph = OnnxGraph("product", "int8")
    graph.output("out", graph.product(graph.input("rows", ["N", INPUTS]), weight))
    return graph.load(1), weight


def rows() -> Tensor:
    """Rows of any magnitude, one of them zeros."""
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(ROWS, INPUTS, generator=generator) * torch.logspace(-6, 6, ROWS)[:, None]
    given[4] = 0
    return given


def multiply(program: Any, given: Tensor) -> Tensor:
    [found] = program.run(("out",), {"rows": given.numpy()})
    return torch.from_numpy(found)


def test_a_product_is_that_of_both_sides_in_int8(product: tuple[Any, Tensor]) -> None:
    program, weight = product
    expected = int8.rounded(rows()).double() @ int8.rounded(weight).double().T
    # In units of both steps. A value in the middle between two is rounded to either one.
    unit = (rows().abs().amax(1, keepdim=True) * weight.abs().amax(1) / int8.LEVELS).clamp(min=int8.LEAST)
    away = ((multiply(program, rows()) - expected) / unit).abs()
    assert away.max() < 2.02
    assert (away > 0.01).float().mean() < 0.005


def test_a_product_is_near_that_in_float32(product: tuple[Any, Tensor]) -> None:
    program, weight = product
    found, expected = multiply(program, rows()), rows() @ weight.T
    for row, (one, right) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(one, right) if row == 4 else distance(one, right) < 0.02


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 17])
def test_a_row_of_a_product_does_not_depend_on_others(product: tuple[Any, Tensor], count: int) -> None:
    program, _ = product
    together = multiply(program, rows())
    for start in range(0, ROWS, count):
        part = slice(start, start + count)
        assert torch.equal(multiply(program, rows()[part]), together[part])


@pytest.mark.parametrize("columns", [1, int8.BLOCK - 1, int8.BLOCK, INPUTS + 1])
def test_rounded_rows_are_those_of_their_values_and_steps(columns: int) -> None:
    given = torch.randn(3, columns, generator=torch.Generator().manual_seed(2))
    values, step = int8.quantized(given)
    assert values.shape == (3, -(-columns // int8.BLOCK), int8.BLOCK)
    assert torch.equal((values * step[..., None]).flatten(1)[:, :columns], int8.rounded(given))


def test_rounded_rows_keep_their_largest_value_and_zeros() -> None:
    kept = int8.rounded(torch.tensor([[0.5, -2.0, 0.0], [0.0, 0.0, 0.0]]))
    assert kept[0, 1:].tolist() == [-2.0, 0.0]
    assert kept[0, 0] == pytest.approx(0.5, abs=1 / int8.LEVELS)
    assert kept[1].tolist() == [0.0, 0.0, 0.0]


@pytest.fixture(scope="module")
def graphs(checkpoint: Checkpoint) -> OnnxTalkerRunner:
    runner = load(checkpoint, kernels="required", talker_proof_seconds=0)
    assert isinstance(runner, OnnxTalkerRunner)
    return runner


def test_the_proof_allows_what_rounding_to_int8_makes(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    """The graphs are as far from FP32 as PyTorch with both sides of its products in int8."""
    with caplog.at_level(logging.INFO):
        load(checkpoint, kernels="required")
    [line] = [record.message for record in caplog.records if "agrees with its golden cases" in record.message]
    worst, allowed = (float(line.split(word)[0].split()[-1].strip("(")) for word in (" (", " allowed"))
    assert 0.005 < allowed / ROUNDINGS < 0.05
    assert worst == pytest.approx(allowed / ROUNDINGS, rel=0.2)


def test_a_row_does_not_depend_on_its_neighbours(checkpoint: Checkpoint, graphs: OnnxTalkerRunner) -> None:
    cases = Cases.of(checkpoint.config, [40, 3, 100, 130, 64, 17, 63, 65])
    alone = []
    for slot in range(SLOTS):
        graphs.prefill([newcomer(graphs, cases, slot, SAMPLINGS[slot])])
        alone.append(speak(graphs, [slot], FRAMES)[:, 0])
    graphs.prefill([newcomer(graphs, cases, slot, SAMPLINGS[slot]) for slot in range(SLOTS)])
    together = speak(graphs, list(range(SLOTS)), FRAMES)
    assert np.array_equal(together, np.stack(alone, axis=1))


def test_weights_of_which_the_graphs_have_copies_are_released(graphs: OnnxTalkerRunner) -> None:
    assert not graphs._talker.transformer.layers
    assert not graphs._predictor.transformer.layers
    assert not graphs._predictor.heads


def test_wrong_graphs_fail_the_load(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would take the memory of FP32, which was not asked for."""
    right = onnx_runner.OnnxTalkerRunner._run_talker

    def run(runner: Any, slots: np.ndarray, rows: np.ndarray, *more: Any, **options: Any) -> np.ndarray:
        return right(runner, slots, rows[:, ::-1], *more, **options)

    monkeypatch.setattr(onnx_runner.OnnxTalkerRunner, "_run_talker", run)
    with pytest.raises(TalkerProofError, match="the talker differs from its golden cases"):
        load(checkpoint)


def test_refused_on_a_gpu(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match="cpu_weights: int8 is for a CPU, on cuda:0 weights are bfloat16: unset it"):
        load(checkpoint, torch.device("cuda:0"))


def test_refused_without_graphs(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match="cpu_weights: int8 requires ONNX Runtime, so kernels must not be off"):
        load(checkpoint, kernels="off")


def test_an_unknown_precision_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="cpu_weights: 'int4': Input should be 'float32' or 'int8'"):
        EngineConfig.from_parameters({"checkpoint": "any", "cpu_weights": "int4"}, {})


def test_int8_takes_less_memory(checkpoint: Checkpoint) -> None:
    """All of the difference is that of products, of which the tiny model has few."""
    full, less = (needed_bytes(checkpoint, weights) - PROCESS_BYTES for weights in ("float32", "int8"))
    products = (full - less) // 4
    assert 0 < products < full // 8
