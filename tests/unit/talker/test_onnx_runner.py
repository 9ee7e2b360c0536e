"""The CPU's graphs compute what PyTorch's operations do; each row alone, whatever runs beside it."""

import builtins
import logging
from typing import Any

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.request import Sampling
from qwen3_tts_engine.talker import onnx_runner
from qwen3_tts_engine.talker.golden import GREEDY, Cases
from qwen3_tts_engine.talker.host_rows import HostRows
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.onnx_graph import OnnxGraph
from qwen3_tts_engine.talker.onnx_runner import OnnxTalkerRunner
from qwen3_tts_engine.talker.proof import TalkerProofError
from qwen3_tts_engine.talker.runner import TalkerRunner
from scripts.synthetic.configs import ModelType
from tests.conftest import CheckpointOf
from tests.fakes.scripted import Listener

CPU, SLOTS, FRAMES = torch.device("cpu"), 8, 24


def load(checkpoint: Checkpoint, **settings: Any) -> TalkerRunner:
    sizes = {"max_streams": SLOTS, "max_text_tokens": 256, "max_frames_limit": 64, "part_text_tokens": 0}
    config = EngineConfig.model_validate({"checkpoint": str(checkpoint.folder), **sizes, **settings})
    return load_runner(checkpoint, config, CPU)


@pytest.fixture(scope="module", params=["custom_voice", "base"])
def checkpoint(request: pytest.FixtureRequest, checkpoint_of: CheckpointOf) -> Checkpoint:
    model_type: ModelType = request.param
    return Checkpoint.open(str(checkpoint_of(model_type)))


@pytest.fixture(scope="module")
def graphs(checkpoint: Checkpoint) -> TalkerRunner:
    runner = load(checkpoint, kernels="required", talker_proof_seconds=0)
    assert isinstance(runner, OnnxTalkerRunner)
    return runner


@pytest.fixture(scope="module")
def eager(checkpoint: Checkpoint) -> TalkerRunner:
    runner = load(checkpoint, kernels="off")
    assert type(runner) is TalkerRunner
    return runner


def sampling(*values: float, seed: int) -> Sampling:
    """Temperature, top_k, top_p and penalty; then the first three of the other codebooks."""
    names = ("temperature", "top_k", "top_p", "repetition_penalty")
    others = ("predictor_temperature", "predictor_top_k", "predictor_top_p")
    return Sampling.model_validate({**dict(zip((*names, *others), values, strict=True)), "seed": seed})


SAMPLINGS = [
    GREEDY,
    sampling(0, 0, 1, 1.4, 0, 0, 1, seed=0),
    sampling(0.9, 50, 1, 1.05, 0.9, 50, 1, seed=1),
    sampling(1.2, 0, 0.7, 1.1, 0.8, 5, 1, seed=2),
    sampling(0.7, 3, 1, 1, 0, 50, 1, seed=3),
    sampling(0, 50, 1, 1.2, 1, 0, 0.3, seed=4),
    sampling(2, 0, 1, 1.05, 1.5, 0, 1, seed=5),
    sampling(0.9, 1, 1, 1.05, 0.9, 1, 0.01, seed=6),
]


def prompts(checkpoint: Checkpoint, rows: list[int]) -> Cases:
    return Cases.of(checkpoint.config, rows)


def newcomer(runner: TalkerRunner, cases: Cases, slot: int, sampling: Sampling, **fields: Any) -> Newcomer:
    count = runner.limits.num_pages // SLOTS
    stream = Stream(str(slot), cases.prompts[slot], sampling, FRAMES, Listener())
    return Newcomer(stream, slot, list(range(slot * count, (slot + 1) * count)), **fields)


def speak(runner: TalkerRunner, slots: list[int], frames: int) -> np.ndarray:
    """Codes [frames, slots, codebooks]."""
    return np.stack([runner.collect(runner.launch(np.array(slots))).codes for _ in range(frames)])


def test_draws_what_pytorch_draws(checkpoint: Checkpoint, graphs: TalkerRunner, eager: TalkerRunner) -> None:
    """Each frame follows from the same codes, since one other code would change all later ones."""
    cases, slots = prompts(checkpoint, [5 + 9 * slot for slot in range(SLOTS)]), np.arange(SLOTS)
    for runner in (graphs, eager):
        given = [newcomer(runner, cases, slot, SAMPLINGS[slot]) for slot in slots.tolist()]
        assert runner.prefill(given) == []
    agree = []
    for _ in range(FRAMES):
        expected = eager.collect(eager.launch(slots)).codes
        found = graphs.collect(graphs.launch(slots)).codes
        agree.append(found == expected)
        graphs.replace_input(slots, expected)
        eager.replace_input(slots, expected)
    # Rounding may turn a near tie, and then all later codebooks of the frame.
    assert np.mean(agree) > 0.99
    assert np.all(np.mean(agree, axis=(0, 2)) > 0.9)


def test_a_row_does_not_depend_on_its_neighbours(checkpoint: Checkpoint, graphs: TalkerRunner) -> None:
    """Neighbours with a longer past, other parameters and prompts that are prefilled between the frames."""
    cases = prompts(checkpoint, [40, 3, 100, 130, 64, 17, 63, 65])
    alone = []
    for slot in range(SLOTS):
        graphs.prefill([newcomer(graphs, cases, slot, SAMPLINGS[slot])])
        alone.append(speak(graphs, [slot], FRAMES)[:, 0])
    together: list[list[np.ndarray]] = [[] for _ in range(SLOTS)]
    for start in range(SLOTS):
        graphs.prefill([newcomer(graphs, cases, start, SAMPLINGS[start])])
        running = list(range(start + 1))
        for codes, slot in zip(speak(graphs, running, 1)[0], running, strict=True):
            together[slot].append(codes)
    codes = speak(graphs, list(range(SLOTS)), FRAMES - SLOTS)
    for slot in range(SLOTS):
        frames = [*together[slot], *codes[:, slot]]
        assert np.array_equal(frames, alone[slot][: len(frames)])


def test_a_stream_that_was_parked_continues_as_if_it_had_not_been(checkpoint: Checkpoint, graphs: TalkerRunner) -> None:
    cases = prompts(checkpoint, [33])
    graphs.prefill([newcomer(graphs, cases, 0, SAMPLINGS[2])])
    expected = speak(graphs, [0], FRAMES)[:, 0]
    graphs.prefill([newcomer(graphs, cases, 0, SAMPLINGS[2], frames=expected[:9])])
    assert np.array_equal(speak(graphs, [0], FRAMES - 9)[:, 0], expected[9:])


def test_a_long_prompt_runs_in_parts(
    checkpoint: Checkpoint, graphs: TalkerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, states = prompts(checkpoint, [130]), []
    for rows in (256, 50, 3, 1):
        monkeypatch.setattr(onnx_runner, "PROMPT_ROWS", rows)
        graphs.prefill([newcomer(graphs, cases, 0, GREEDY)])
        states.append(graphs._state.input[0].clone())
    assert all(torch.equal(state, states[0]) for state in states[1:])


def test_the_end_of_an_utterance_is_its_id(
    checkpoint: Checkpoint, graphs: TalkerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end cannot be drawn in the first frames; then its logit is made the largest one."""
    right = HostRows.drawing

    def ending(rows: HostRows) -> dict[str, np.ndarray]:
        inputs = right(rows)
        return inputs | {"end_bias": np.where(np.isinf(inputs["end_bias"]), inputs["end_bias"], np.float32(100))}

    monkeypatch.setattr(HostRows, "drawing", ending)
    graphs.prefill([newcomer(graphs, prompts(checkpoint, [9]), 0, GREEDY)])
    ticks = [graphs.collect(graphs.launch(np.array([0]))) for _ in range(3)]
    assert [bool(tick.ended[0]) for tick in ticks] == [False, False, True]
    assert ticks[2].codes[0, 0] == checkpoint.config.talker_config.codec_eos_token_id


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator computes something else."""
    right = OnnxGraph.op

    def op(graph: OnnxGraph, kind: str, *inputs: str, **attributes: Any) -> str:
        return right(graph, "Add" if kind == "Mul" else kind, *inputs, **attributes)

    monkeypatch.setattr(OnnxGraph, "op", op)


@pytest.mark.usefixtures("damaged")
def test_wrong_graphs_give_way_to_pytorch(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        runner = load(checkpoint)
    assert not runner.has_graphs
    assert (
        "PyTorch operations, which are slower, replace ONNX Runtime's graphs on the CPU: the talker differs"
        in caplog.text
    )


@pytest.mark.usefixtures("damaged")
def test_wrong_graphs_fail_the_load_where_they_are_required(checkpoint: Checkpoint) -> None:
    with pytest.raises(TalkerProofError, match="the talker differs from its golden cases"):
        load(checkpoint, kernels="required")


def test_pytorch_serves_where_onnx_runtime_is_missing(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "qwen3_tts_engine.talker.onnx_runner":
            raise ModuleNotFoundError("No module named 'onnxruntime'")
        return real(name, *rest, **more)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    with caplog.at_level(logging.WARNING):
        assert not load(checkpoint).has_graphs
    assert "replace ONNX Runtime's graphs on the CPU: No module named 'onnxruntime'" in caplog.text


def test_graphs_whose_rows_depend_on_the_batch_give_way_to_pytorch(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They depend on it by less than a distance from the golden cases would show."""
    right = onnx_runner.OnnxTalkerRunner._run_talker

    def run(runner: Any, slots: np.ndarray, rows: np.ndarray, *more: Any, **options: Any) -> np.ndarray:
        return right(runner, slots, rows * np.float32(1 + 1e-6 * len(slots)), *more, **options)

    monkeypatch.setattr(onnx_runner.OnnxTalkerRunner, "_run_talker", run)
    with caplog.at_level(logging.WARNING):
        assert not load(checkpoint).has_graphs
    assert "rows depend on the batch" in caplog.text


def test_a_prompt_that_a_graph_refuses_fails_alone(
    checkpoint: Checkpoint, graphs: TalkerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, places = prompts(checkpoint, [9, 20]), onnx_runner.OnnxTalkerRunner._cache_rows
    monkeypatch.setattr(
        onnx_runner.OnnxTalkerRunner, "_cache_rows", lambda *given: places(*given) + (given[2] == 20) * 10**6
    )
    first, second = (newcomer(graphs, cases, slot, GREEDY) for slot in range(2))
    [(failed, error)] = graphs.prefill([first, second])
    assert failed is second
    assert "ONNX Runtime: " in str(error)
    assert speak(graphs, [0], 1).shape == (1, 1, 16)
