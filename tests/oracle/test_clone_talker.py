"""Prompts and greedy codes of cloned and designed voices equal those of the package qwen-tts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.voice import Voice
from scripts.synthetic.checkpoint import make_checkpoint
from tests.conftest import CheckpointOf
from tests.fakes.scripted import Listener
from tests.oracle.reference import VoiceClone, load_processor, load_reference, reference_generate
from tests.oracle.speaking import CPU, reference_prefill, synthesise

FRAMES = 24


@dataclass(frozen=True)
class Clone:
    """A text in a voice with `frames` reference frames of the text `said`; x-vector only without `said`."""

    text: str
    language: str = "auto"
    frames: int = 0
    said: str | None = None


CLONES = [
    Clone("Hello there.", frames=20, said="Good morning."),
    Clone("Hello there, this is a test of a longer sentence.", "english", 3, "Good morning to all of you."),
    Clone("你好，今天天气怎么样？", "chinese", 40, "早上好。"),
    Clone("Guten Tag! Wie geht es Ihnen?", "german", 1, "Ja."),
    Clone("今日はいい天気ですね。", "japanese", 90, "おはようございます。"),
    Clone("Ça va bien, merci.", "French", 12, "Bonjour à tous, et bienvenue à cette petite démonstration."),
    Clone("a", frames=7, said="b"),
    Clone("Hello there."),
    Clone("Hello there, this is a test.", "english"),
    Clone("오늘 날씨가 좋네요.", "korean"),
    Clone("1, 2, 3… and 42 – done!", "Spanish"),
]
DESIGNS = [
    ("Hello there.", "auto", "A deep, calm voice of an old man."),
    ("Hello there, this is a test.", "english", "Cheerful child"),
    ("你好，今天天气怎么样？", "chinese", "温柔的女声"),
    ("Добрый день, друзья.", "russian", "1, 2, 3"),
]


def voice_of(clone: Clone, hidden: int) -> Voice:
    random = np.random.default_rng(len(clone.text) + clone.frames)
    vector = random.normal(0, 0.3, hidden).astype(np.float32)
    codes = random.integers(0, 2048, (clone.frames, 16), np.int32)
    return Voice(vector, codes, clone.said) if clone.said else Voice(vector)


def reference_voice(voice: Voice) -> VoiceClone:
    speaker = torch.from_numpy(voice.x_vector)
    return VoiceClone(speaker, None if voice.codes is None else torch.from_numpy(voice.codes).long(), voice.text)


def request(clone: Clone) -> dict[str, Any]:
    return {
        "text": clone.text, "language": clone.language, "voice": "any", "temperature": 0.0, "max_frames": FRAMES
    }  # fmt: skip


@pytest.fixture(scope="module")
def base(checkpoint_of: CheckpointOf) -> Path:
    return checkpoint_of("base")


@pytest.fixture(scope="module")
def voices(base: Path) -> list[Voice]:
    hidden = Checkpoint.open(str(base)).config.talker_config.hidden_size
    return [voice_of(clone, hidden) for clone in CLONES]


@pytest.fixture(scope="module")
def oracle(base: Path) -> Callable[..., list[np.ndarray]]:
    model, processor = load_reference(base), load_processor(base)

    def generate(clones: list[Clone], voices: list[Voice], full: bool) -> list[np.ndarray]:
        codes = reference_generate(
            model, processor, [clone.text for clone in clones], languages=[clone.language for clone in clones],
            clones=[reference_voice(voice) for voice in voices], non_streaming=full, max_new_tokens=FRAMES + 1,
        )  # fmt: skip
        return [c.numpy() for c in codes]

    return generate


@pytest.mark.parametrize("layout", ["full", "streaming"])
def test_in_context_and_x_vector_clones_equal_the_reference(
    layout: str, base: Path, voices: list[Voice], oracle: Callable[..., list[np.ndarray]]
) -> None:
    """Clones in context and by x-vector in shared batches equal a batch of the reference, and one of them alone."""
    ours = synthesise(base, [request(clone) for clone in CLONES], voices, text_layout=layout)
    for clone, codes, expected in zip(CLONES, ours, oracle(CLONES, voices, layout == "full"), strict=True):
        np.testing.assert_array_equal(codes, expected, err_msg=str(clone))
    [alone] = oracle(CLONES[:1], voices[:1], layout == "full")
    np.testing.assert_array_equal(ours[0], alone)


def test_default_layout_equals_the_reference_default(
    base: Path, voices: list[Voice], oracle: Callable[..., list[np.ndarray]]
) -> None:
    [codes], [expected] = synthesise(base, [request(CLONES[0])], voices[:1]), oracle([CLONES[0]], voices[:1], False)
    np.testing.assert_array_equal(codes, expected)


def test_reference_text_frames_and_x_vector_change_the_codes(base: Path, voices: list[Voice]) -> None:
    """Validates the tests above: reference text, frames and x-vector each change the codes."""
    first, said = voices[0], CLONES[0].said
    assert first.codes is not None
    others = [
        Voice(-first.x_vector, first.codes, said),
        Voice(first.x_vector, first.codes[::-1].copy(), said),
        Voice(first.x_vector, first.codes, "Something else."),
        first.alone(),
    ]
    expected, *ours = synthesise(base, [request(CLONES[0])] * 5, [first, *others])
    for codes in ours:
        assert not np.array_equal(codes[: len(expected)], expected[: len(codes)])


@pytest.mark.parametrize("layout", ["full", "streaming"])
def test_designed_voices_equal_the_reference(layout: str, checkpoint_of: CheckpointOf) -> None:
    folder = checkpoint_of("voice_design")
    model, processor = load_reference(folder), load_processor(folder)
    fields = [dict(zip(("text", "language", "instruct"), design, strict=True)) for design in DESIGNS]
    greedy = {"temperature": 0.0, "max_frames": FRAMES}
    texts, languages, instructs = zip(*DESIGNS, strict=True)
    expected = reference_generate(
        model, processor, texts, languages=languages, instructs=instructs, non_streaming=layout == "full",
        max_new_tokens=FRAMES + 1,
    )  # fmt: skip
    ours = synthesise(folder, [field | greedy for field in fields], text_layout=layout)
    for design, codes, reference in zip(DESIGNS, ours, expected, strict=True):
        np.testing.assert_array_equal(codes, reference, err_msg=str(design))


def test_prompt_embeddings_equal_the_reference_prefill(base: Path, voices: list[Voice]) -> None:
    """Compares each prompt row with the inputs of the reference's talker."""
    model, processor = load_reference(base), load_processor(base)
    checkpoint = Checkpoint.open(str(base))
    for layout in ("full", "streaming"):
        config = EngineConfig(checkpoint=str(base), max_streams=1, text_layout=layout, talker_proof_seconds=0)
        prompts = PromptBuilder(checkpoint, config)
        talker = load_runner(checkpoint, config, CPU)._talker
        for clone, voice in zip(CLONES, voices, strict=True):
            generate = partial(
                reference_generate, model, processor, [clone.text], languages=[clone.language],
                clones=[reference_voice(voice)], non_streaming=layout == "full",
            )  # fmt: skip
            captured = reference_prefill(model, generate)
            prompt = prompts.stream(SynthesisRequest.of(request(clone)).in_voice(voice), Listener(), "").prompt
            rows = talker.embed(torch.from_numpy(prompt.text_ids).long(), torch.from_numpy(prompt.code_ids).long())
            rows[prompt.vector_row] += torch.from_numpy(voice.x_vector)
            torch.testing.assert_close(rows, captured["inputs_embeds"][0], atol=1e-5, rtol=1e-5)
            trailing = talker.text_table[torch.tensor(prompt.trailing or [checkpoint.config.tts_pad_token_id])]
            torch.testing.assert_close(trailing, captured["trailing_text_hidden"][0], atol=1e-5, rtol=1e-5)


def test_custom_voice_0_6b_ignores_instruct_like_the_reference(tmp_path: Path) -> None:
    """Uses a tiny checkpoint whose config states size 0.6B."""
    folder = make_checkpoint(tmp_path / "small", "tiny", "custom_voice")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"tts_model_size": "tiny"', '"tts_model_size": "0b6"'))
    model, processor = load_reference(folder), load_processor(folder)
    fields = {"text": "Hello there.", "speaker": "ryan", "temperature": 0.0, "max_frames": FRAMES}
    plain, instructed = synthesise(folder, [fields, fields | {"instruct": "Angrily."}])
    [expected] = reference_generate(
        model, processor, ["Hello there."], speakers=["ryan"], instructs=["Angrily."], max_new_tokens=FRAMES + 1
    )
    np.testing.assert_array_equal(instructed, expected)
    np.testing.assert_array_equal(instructed, plain)
