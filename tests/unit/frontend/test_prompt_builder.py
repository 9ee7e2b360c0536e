"""Requests that exceed the limits of the server or the checkpoint are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import InvalidRequest, SynthesisRequest
from qwen3_tts_engine.voice import Voice
from tests.conftest import CheckpointOf
from tests.fakes.scripted import Listener


def builder(folder: Path, **settings: Any) -> PromptBuilder:
    config = EngineConfig(checkpoint=str(folder), max_text_tokens=64, max_frames_limit=64, **settings)
    return PromptBuilder(Checkpoint.open(str(folder)), config)


def clone(seconds: float, text: str = "What it says.") -> SynthesisRequest:
    codes = np.zeros((round(seconds * 12.5), 16), np.int32)
    voice = Voice(np.zeros(128, np.float32), codes, text)
    return SynthesisRequest.of({"text": "Hello.", "voice": "anna", "max_frames": 40}).in_voice(voice)


def test_refuses_a_voice_registered_under_larger_limits(checkpoint_of: CheckpointOf) -> None:
    prompts = builder(checkpoint_of("base"), max_reference_seconds=2)
    assert prompts.stream(clone(2.0), Listener(), "fits").num_positions > 0
    for speak in (prompts.stream, prompts.streamed):
        with pytest.raises(InvalidRequest, match="voice: '50 frames': max_reference_seconds allows 25 frames"):
            speak(clone(4.0), Listener(), "too long")
        with pytest.raises(InvalidRequest, match=r"ref_text: .*tokens, at most 64 are allowed"):
            speak(clone(2.0, "many words " * 40), Listener(), "too many words")


def test_refuses_more_positions_than_the_checkpoint_has(checkpoint_of: CheckpointOf) -> None:
    prompts = builder(checkpoint_of("base"))
    talker = prompts._talker.model_copy(update={"max_position_embeddings": 60})
    prompts._model = prompts._model.model_copy(update={"talker_config": talker})
    for speak in (prompts.stream, prompts.streamed):
        with pytest.raises(InvalidRequest, match="positions': a prompt and its frames take at most 60"):
            speak(clone(2.0), Listener(), "too long")
