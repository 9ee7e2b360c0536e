"""Synthetic checkpoints load in the reference package and behave sufficiently like trained ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from scripts.synthetic.checkpoint import make_checkpoint, model_shapes, speech_tokenizer_shapes
from scripts.synthetic.tokenizer import ROLES, WORDS, text_tokenizer
from tests.conftest import CheckpointOf
from tests.oracle.reference import (
    assistant_text,
    clone_voice,
    instruct_text,
    load_processor,
    load_reference,
    reference_codec,
    reference_generate,
    reference_text,
)

# The talker of voice_design is made as that of custom_voice.
MODEL_TYPES = ("custom_voice", "base", pytest.param("voice_design", marks=pytest.mark.long))
TEXTS = (
    "hello world",
    "good morning, people",
    "你好世界",
    "thank you",
    "how many people see the water?",
    "speak slowly",
)
FRAMES = 90
SAMPLE_RATE = 24000


@pytest.fixture(scope="module", params=MODEL_TYPES)
def folder(request: pytest.FixtureRequest, checkpoint_of: CheckpointOf) -> Path:
    return checkpoint_of(request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load_reference(folder)


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    return load_processor(folder)


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    """Two seconds of coloured noise, as loud as speech."""
    white = np.random.default_rng(0).standard_normal(2 * SAMPLE_RATE + 16)
    return (0.1 * np.convolve(white, np.ones(17) / 4, mode="valid")).astype(np.float32)


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.fixture(scope="module")
def voice(model: Any, noise: np.ndarray) -> dict[str, Any]:
    """Voice arguments of `reference_generate` for the model type."""
    if model.tts_model_type == "base":
        return {"clones": [clone_voice(model, noise)] * len(TEXTS)}
    if model.tts_model_type == "voice_design":
        return {"instructs": ["a sad voice"] * len(TEXTS)}
    return {"speakers": ["ryan"] * len(TEXTS)}


@pytest.fixture(scope="module")
def greedy_codes(model: Any, processor: Any, voice: dict[str, Any]) -> list[torch.Tensor]:
    return reference_generate(model, processor, TEXTS, max_new_tokens=FRAMES + 1, **voice)


@pytest.fixture(scope="module")
def sampled_codes(model: Any, processor: Any, voice: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return reference_generate(model, processor, TEXTS, greedy=False, max_new_tokens=FRAMES + 1, **voice)


def test_checkpoint_opens_with_its_model_type(folder: Path) -> None:
    assert Checkpoint.open(str(folder)).config.tts_model_type == folder.name


def test_shapes_equal_the_reference(folder: Path, model: Any) -> None:
    assert model_shapes(folder) == shapes_of(model)


def test_codec_shapes_equal_the_reference(tiny_checkpoint: Path) -> None:
    codec = reference_codec(tiny_checkpoint)
    assert speech_tokenizer_shapes(tiny_checkpoint / "speech_tokenizer") == shapes_of(codec)


def test_files_contain_exactly_the_expected_tensors(folder: Path) -> None:
    for name, shapes, dtype in (
        ("model.safetensors", model_shapes(folder), "BF16"),
        ("speech_tokenizer/model.safetensors", speech_tokenizer_shapes(folder / "speech_tokenizer"), "F32"),
    ):
        with safe_open(folder / name, framework="pt") as file:
            assert set(file.keys()) == shapes.keys()
            assert {file.get_slice(name).get_dtype() for name in shapes} == {dtype}


def test_chat_templates_tokenise_into_the_prompt_slices(folder: Path, processor: Any) -> None:
    config = Checkpoint.open(str(folder)).config
    start, end, newline = config.im_start_token_id, config.im_end_token_id, 198
    header = [start, config.assistant_token_id, newline]
    for text in TEXTS:
        ids = processor.tokenizer(assistant_text(text))["input_ids"]
        assert ids[:3] == header
        assert ids[-5:] == [end, newline, *header]
        assert processor.decode(ids[3:-5]) == text
        assert processor.tokenizer(reference_text(text))["input_ids"] == ids[:-3]
        assert processor.tokenizer(instruct_text(text))["input_ids"][3:-2] == ids[3:-5]


def test_control_token_ids_equal_the_config(folder: Path, processor: Any) -> None:
    config = Checkpoint.open(str(folder)).config
    tokens = ["<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"]
    ids = [config.im_start_token_id, config.im_end_token_id]
    ids += [config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id]
    assert processor.tokenizer.convert_tokens_to_ids(tokens) == ids
    assert max(ids) < config.talker_config.text_vocab_size


def test_each_word_is_one_token(folder: Path, processor: Any) -> None:
    for word in (*ROLES, *WORDS, *(f" {word}" for word in WORDS)):
        assert len(processor.tokenizer(word)["input_ids"]) == 1, word


def test_text_token_ids_equal_the_released_ones() -> None:
    assert text_tokenizer("1.7b").ids_for_config() == {
        "assistant_token_id": 77091,
        "im_start_token_id": 151644,
        "im_end_token_id": 151645,
        "tts_pad_token_id": 151671,
        "tts_bos_token_id": 151672,
        "tts_eos_token_id": 151673,
    }


def test_greedy_codes_vary_with_text_and_time(greedy_codes: list[torch.Tensor]) -> None:
    assert len({tuple(codes[:20].flatten().tolist()) for codes in greedy_codes}) == len(TEXTS)
    assert all(len(codes[:, 0].unique()) > len(codes) / 2 for codes in greedy_codes)


def test_some_utterances_end_before_the_cap_and_some_at_it(
    greedy_codes: list[torch.Tensor], sampled_codes: list[torch.Tensor]
) -> None:
    lengths = [len(codes) for codes in (*greedy_codes, *sampled_codes)]
    assert max(lengths) == FRAMES
    assert any(5 < length < FRAMES for length in lengths)


def test_sampled_speech_is_audible_and_not_clipped(model: Any, sampled_codes: list[torch.Tensor]) -> None:
    codes = torch.cat(sampled_codes)[:200]
    waveform = model.speech_tokenizer.model.decode(codes[None]).audio_values[0]
    assert len(waveform) == 1920 * len(codes)
    assert 0.05 < waveform.std() < 0.25
    assert (waveform.abs() > 0.99).float().mean() < 0.01


def test_cloned_voice_depends_on_the_recording(checkpoint_of: CheckpointOf, noise: np.ndarray) -> None:
    model = load_reference(checkpoint_of("base"))
    loud, quiet = (clone_voice(model, audio, "hello world") for audio in (noise, noise[::-1].copy() / 4))
    assert loud.codes is not None
    assert loud.codes.shape == (25, 16)
    assert all(len(column.unique()) > 5 for column in loud.codes.T)
    assert 0.1 < loud.speaker.square().mean().sqrt() < 2
    assert (loud.speaker - quiet.speaker).abs().max() > 0.01


def test_equal_seeds_give_equal_files_and_others_differ(tiny_checkpoint: Path, tmp_path: Path) -> None:
    same, other = (make_checkpoint(tmp_path / str(seed), "tiny", "custom_voice", seed=seed) for seed in (0, 1))
    for name in ("model.safetensors", "speech_tokenizer/model.safetensors"):
        assert (same / name).read_bytes() == (tiny_checkpoint / name).read_bytes() != (other / name).read_bytes()
    assert json.loads((same / "config.json").read_text()) == json.loads((tiny_checkpoint / "config.json").read_text())
