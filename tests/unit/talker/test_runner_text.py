"""Codes are the same whether the text is complete at the start or streams in."""

from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.runner import TalkerRunner
from tests.fakes.dictation import speak_in_pieces, speak_whole
from tests.fakes.scripted import Listener

FRAMES = 30
TEXTS = ["Hello there.", "One, two, three.", "x"]


@pytest.fixture(scope="module")
def config(tiny_checkpoint: Path) -> EngineConfig:
    sizes = {"max_streams": 4, "max_text_tokens": 64, "max_frames_limit": 128, "talker_proof_seconds": 0}
    return EngineConfig.model_validate({"checkpoint": str(tiny_checkpoint), "text_layout": "streaming", **sizes})


@pytest.fixture(scope="module")
def runner(config: EngineConfig) -> TalkerRunner:
    return load_runner(Checkpoint.open(config.checkpoint), config, torch.device("cpu"))


def newcomers(config: EngineConfig) -> list[Newcomer]:
    prompts = PromptBuilder(Checkpoint.open(config.checkpoint), config)
    requests = [SynthesisRequest.of({"text": text, "speaker": "ryan", "temperature": 0.0}) for text in TEXTS]
    streams = [prompts.stream(request, Listener(), text) for request, text in zip(requests, TEXTS, strict=True)]
    pages = -(-128 // config.page_size)
    return [Newcomer(stream, slot, [*range(slot * pages, (slot + 1) * pages)]) for slot, stream in enumerate(streams)]


@pytest.mark.parametrize("late", [False, True], ids=["in-time", "late"])
def test_codes_are_the_same_for_text_in_pieces(runner: TalkerRunner, config: EngineConfig, late: bool) -> None:
    expected = speak_whole(runner, newcomers(config), FRAMES)
    np.testing.assert_array_equal(speak_in_pieces(runner, newcomers(config), FRAMES, late=late), expected)


def test_missing_text_changes_the_codes(runner: TalkerRunner, config: EngineConfig) -> None:
    """Otherwise the test above could not fail."""
    silent = newcomers(config)
    expected = speak_whole(runner, newcomers(config), FRAMES)
    for newcomer in silent:
        newcomer.stream.prompt.trailing.clear()
    assert not np.array_equal(speak_whole(runner, silent, FRAMES), expected)
