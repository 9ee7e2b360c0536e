"""Requests that exceed the limits of the server or the checkpoint are refused."""

import json
import shutil
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
from tests.fakes.checkpoints import fine_tune
from tests.fakes.scripted import Listener


def builder(folder: Path, **settings: Any) -> PromptBuilder:
    config = EngineConfig(checkpoint=str(folder), max_text_tokens=64, max_frames_limit=64, **settings)
    return PromptBuilder(Checkpoint.open(str(folder)), config)


def clone(seconds: float, text: str = "What it says.") -> SynthesisRequest:
    codes = np.zeros((round(seconds * 12.5), 16), np.int32)
    voice = Voice(np.zeros(128, np.float32), codes, text)
    return SynthesisRequest.of({"text": "Hello.", "voice": "anna", "max_frames": 40}).in_voice(voice)


@pytest.fixture
def fine_tuned(tiny_checkpoint: Path, tmp_path: Path) -> PromptBuilder:
    return builder(fine_tune(tiny_checkpoint, tmp_path / "fine-tuned"))


def rows(prompts: PromptBuilder, **fields: Any) -> list[int]:
    """The first codebook of each row of the prompt."""
    stream = prompts.stream(SynthesisRequest.of({"text": "Hello.", "max_frames": 8} | fields), Listener(), "any")
    return [int(code) for code in stream.prompt.code_ids[:, 0]]


@pytest.mark.parametrize(
    ("own", "given", "parts"), [(None, "auto", 1), (4, "auto", 3), (4, 150, 1), (None, 4, 3), (4, 0, 1)]
)
def test_a_checkpoint_says_how_long_a_part_is(
    tiny_checkpoint: Path, tmp_path: Path, own: int | None, given: object, parts: int
) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | ({"part_text_tokens": own} if own else {})))
    request = SynthesisRequest.of({"text": "One two three. " * 3, "speaker": "ryan", "max_frames": 8})
    stream = builder(folder, part_text_tokens=given).stream(request, Listener(), "any")
    assert 1 + len(stream.following) == parts


@pytest.mark.parametrize("name", ["MyVoice", "myvoice", "MYVOICE"])
def test_a_speaker_is_found_in_any_case(fine_tuned: PromptBuilder, name: str) -> None:
    assert 3000 in rows(fine_tuned, speaker=name)


def test_released_speakers_are_found_in_any_case(tiny_checkpoint: Path) -> None:
    prompts = builder(tiny_checkpoint)
    assert rows(prompts, speaker="Eric") == rows(prompts, speaker="eric")


def test_an_unknown_speaker_is_refused_with_those_of_the_checkpoint(fine_tuned: PromptBuilder) -> None:
    with pytest.raises(InvalidRequest, match=r"^speaker: 'vivian': unknown: choose one of MyVoice$"):
        rows(fine_tuned, speaker="vivian")


def test_a_checkpoint_lists_its_own_speakers(fine_tuned: PromptBuilder, tiny_checkpoint: Path) -> None:
    assert fine_tuned.speakers() == [{"name": "MyVoice", "dialect": None}]
    assert {"name": "eric", "dialect": "sichuan_dialect"} in builder(tiny_checkpoint).speakers()


def test_a_base_checkpoint_refuses_to_list_speakers(checkpoint_of: CheckpointOf) -> None:
    with pytest.raises(InvalidRequest, match="operation: 'list_speakers': this checkpoint is for Base voice clone"):
        builder(checkpoint_of("base")).speakers()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("en", "english"),
        ("EN-us", "english"),
        ("zh-CN", "chinese"),
        ("zh_Hans_CN", "chinese"),
        ("pt-BR", "portuguese"),
        ("German", "german"),
        ("", "auto"),
    ],
)
def test_a_language_code_means_its_language(tiny_checkpoint: Path, code: str, name: str) -> None:
    prompts = builder(tiny_checkpoint)
    assert rows(prompts, speaker="ryan", language=code) == rows(prompts, speaker="ryan", language=name)


@pytest.mark.parametrize("language", ["klingon", "tlh", "nl", "english-", "en us"])
def test_an_unknown_language_is_refused_with_those_of_the_checkpoint(tiny_checkpoint: Path, language: str) -> None:
    with pytest.raises(
        InvalidRequest, match=rf"language: '{language}': unknown: choose one of auto, chinese, english, "
    ):
        rows(builder(tiny_checkpoint), speaker="ryan", language=language)


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
