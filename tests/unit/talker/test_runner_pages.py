"""Codes are the same with pages assigned at once, one by one, or again after they were taken away."""

from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.runner import TalkerRunner
from tests.fakes.scripted import Listener
from tests.unit.talker.test_graph_rows import as_graph_runner

FRAMES, PAGE = 40, 4
SLOT, OTHER = np.array([1]), np.array([2])


@pytest.fixture(scope="module", params=["streaming", "full"])
def config(request: pytest.FixtureRequest, tiny_checkpoint: Path) -> EngineConfig:
    sizes = {
        "max_streams": 4,
        "max_text_tokens": 64,
        "max_frames_limit": 64,
        "page_size": PAGE,
        "talker_proof_seconds": 0,
    }
    return EngineConfig.model_validate({"checkpoint": str(tiny_checkpoint), "text_layout": request.param, **sizes})


@pytest.fixture(scope="module")
def runner(config: EngineConfig) -> TalkerRunner:
    return load_runner(Checkpoint.open(config.checkpoint), config, torch.device("cpu"))


def stream(config: EngineConfig) -> Stream:
    prompts = PromptBuilder(Checkpoint.open(config.checkpoint), config)
    request = {"text": "Hello there, my friend.", "speaker": "ryan", "temperature": 0.0, "repetition_penalty": 1.3}
    return prompts.stream(SynthesisRequest.of(request), Listener(), "0")


def speak(runner: TalkerRunner, slot: np.ndarray, frames: int) -> np.ndarray:
    return np.concatenate([runner.collect(runner.launch(slot)).codes for _ in range(frames)])


def at_once(runner: TalkerRunner, config: EngineConfig) -> np.ndarray:
    assert runner.prefill([Newcomer(stream(config), 1, list(range(40)))]) == []
    return speak(runner, SLOT, FRAMES)


def test_codes_are_the_same_with_pages_assigned_one_by_one(runner: TalkerRunner, config: EngineConfig) -> None:
    expected = at_once(runner, config)
    speaker = stream(config)
    rows = len(speaker.prompt)
    pages = list(range(40))[::-1]
    held = -(-rows // PAGE)
    assert runner.prefill([Newcomer(speaker, 1, pages[:held])]) == []
    made = [speak(runner, SLOT, 1)]
    for position in range(rows, rows + FRAMES - 1):
        if position == held * PAGE:
            runner.grow(np.array([[1, held, pages[held]], [3, held, 99]]))
            held += 1
        made.append(speak(runner, SLOT, 1))
    np.testing.assert_array_equal(np.concatenate(made), expected)


@pytest.mark.parametrize("made", [0, 1, 5, 25])
def test_a_stream_resumes_after_losing_its_pages(runner: TalkerRunner, config: EngineConfig, made: int) -> None:
    """Resumes in another slot, so that the device has no state of it; its text may have ended before."""
    expected = at_once(runner, config)
    made = min(made, int((expected[:, 0] != runner._state.eos).cumprod().sum()))
    again = Newcomer(stream(config), 2, list(range(40, 80)), expected[:made].astype(np.int16))
    assert runner.prefill([again]) == []
    np.testing.assert_array_equal(speak(runner, OTHER, FRAMES - made), expected[made:])


def test_rows_of_a_graph_include_the_frames_made_before(runner: TalkerRunner, config: EngineConfig) -> None:
    made = at_once(runner, config)[:9].astype(np.int16)
    again = Newcomer(stream(config), 2, list(range(40, 80)), made)
    assert runner.prefill([again]) == []
    expected = runner._state.input[2].clone()
    runner._state.input.zero_()
    graphs = as_graph_runner(runner)
    with torch.inference_mode():
        graphs._prefill_rows(torch.from_numpy(graphs._prompt_rows([again])))
    torch.testing.assert_close(runner._state.input[2], expected, atol=1e-5, rtol=1e-5)
