"""Greedy codes of the talker engine equal those of the package qwen-tts, in fp32."""

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
from tests.fakes.scripted import Listener
from tests.oracle.reference import load_processor, load_reference, reference_generate
from tests.oracle.speaking import CPU, reference_prefill, synthesise

FRAMES = 30


@dataclass(frozen=True)
class Case:
    text: str
    language: str = "auto"
    speaker: str = "ryan"
    instruct: str | None = None


CASES = [
    Case("Hello there."),
    Case("Hello there, this is a test.", "english"),
    Case("Hello there, this is a test.", "English", "Vivian"),
    Case("你好，今天天气怎么样？", "chinese", "serena"),
    Case("你好，今天天气怎么样？", "chinese", "eric"),
    Case("你好，今天天气怎么样？", "auto", "dylan"),
    Case("Ça va bien, merci.", "french", "eric"),
    Case("Guten Tag! Wie geht es Ihnen?", "german", "aiden", "Sprich langsam."),
    Case("今日はいい天気ですね。", "japanese", "ono_anna"),
    Case("오늘 날씨가 좋네요.", "korean", "sohee", "Happily, please."),
    Case("Hola, ¿qué tal?", "spanish", "uncle_fu"),
    Case("1, 2, 3… and 42 – done!", "auto", "ryan", "Like a news reader."),
    Case("È una bella giornata.", "italian", "ryan"),
    Case("Bom dia a todos.", "portuguese", "serena"),
    Case("Добрый день, друзья.", "russian", "vivian"),
    Case("a"),
]


def greedy(case: Case, frames: int = FRAMES) -> dict[str, Any]:
    return {**vars(case), "temperature": 0.0, "max_frames": frames}


@pytest.fixture(scope="module")
def oracle(tiny_checkpoint: Path) -> Callable[..., list[np.ndarray]]:
    model, processor = load_reference(tiny_checkpoint), load_processor(tiny_checkpoint)

    def generate(cases: list[Case], full: bool, frames: int = FRAMES, **settings: Any) -> list[np.ndarray]:
        codes = reference_generate(
            model,
            processor,
            [case.text for case in cases],
            languages=[case.language for case in cases],
            speakers=[case.speaker for case in cases],
            instructs=[case.instruct or "" for case in cases],
            non_streaming=full,
            max_new_tokens=frames + 1,
            **settings,
        )
        return [c.numpy() for c in codes]

    return generate


@pytest.mark.parametrize("layout", ["full", "streaming"])
def test_greedy_codes_equal_the_reference(
    layout: str, tiny_checkpoint: Path, oracle: Callable[..., list[np.ndarray]]
) -> None:
    """All cases in one batch of the reference, and one of them alone."""
    ours = synthesise(tiny_checkpoint, [greedy(case) for case in CASES], text_layout=layout)
    for case, codes, expected in zip(CASES, ours, oracle(CASES, layout == "full"), strict=True):
        np.testing.assert_array_equal(codes, expected, err_msg=str(case))
    [alone] = oracle(CASES[7:8], layout == "full")
    np.testing.assert_array_equal(ours[7], alone)


def test_speech_ends_at_the_same_frame_as_the_reference(
    tiny_checkpoint: Path, oracle: Callable[..., list[np.ndarray]]
) -> None:
    """At least one utterance ends before its cap."""
    cap = 200
    ours = synthesise(tiny_checkpoint, [greedy(case, cap) for case in CASES])
    lengths = [len(codes) for codes in ours]
    assert min(lengths) < cap
    early = lengths.index(min(lengths))
    [expected] = oracle([CASES[early]], True, cap)
    np.testing.assert_array_equal(ours[early], expected)


def test_codes_with_repetition_penalty_equal_the_reference(
    tiny_checkpoint: Path, oracle: Callable[..., list[np.ndarray]]
) -> None:
    request = greedy(CASES[3]) | {"repetition_penalty": 1.7}
    [codes], [expected] = synthesise(tiny_checkpoint, [request]), oracle([CASES[3]], True, repetition_penalty=1.7)
    np.testing.assert_array_equal(codes, expected)


def test_codes_do_not_depend_on_other_streams(tiny_checkpoint: Path) -> None:
    requests = [{**vars(case), "seed": 100 + i, "max_frames": FRAMES} for i, case in enumerate(CASES)]
    together = synthesise(tiny_checkpoint, requests)
    for request, codes in list(zip(requests, together, strict=True))[::5]:
        np.testing.assert_array_equal(synthesise(tiny_checkpoint, [request])[0], codes)


def test_equal_seeds_give_equal_codes_and_others_differ(tiny_checkpoint: Path) -> None:
    request = {**vars(CASES[1]), "max_frames": FRAMES}
    same, again, other = synthesise(tiny_checkpoint, [request | {"seed": seed} for seed in (1, 1, 2)])
    np.testing.assert_array_equal(same, again)
    assert not np.array_equal(same[: len(other)], other[: len(same)])


def test_sampled_codes_are_in_range(tiny_checkpoint: Path) -> None:
    requests = [{**vars(case), "seed": i, "max_frames": FRAMES, "temperature": 1.5} for i, case in enumerate(CASES)]
    for codes in synthesise(tiny_checkpoint, requests):
        assert len(codes) >= 2
        assert codes.min() >= 0
        assert codes.max() < 2048


def test_prompt_embeddings_equal_the_reference_prefill(tiny_checkpoint: Path) -> None:
    """Compares each prompt row with the inputs of the reference's talker."""
    model, processor = load_reference(tiny_checkpoint), load_processor(tiny_checkpoint)
    checkpoint = Checkpoint.open(str(tiny_checkpoint))
    for layout in ("full", "streaming"):
        config = EngineConfig(
            checkpoint=str(tiny_checkpoint), max_streams=1, text_layout=layout, talker_proof_seconds=0
        )
        prompts = PromptBuilder(checkpoint, config)
        talker = load_runner(checkpoint, config, CPU)._talker
        for case in CASES:
            generate = partial(
                reference_generate, model, processor, [case.text], languages=[case.language], speakers=[case.speaker],
                instructs=[case.instruct or ""], non_streaming=layout == "full",
            )  # fmt: skip
            captured = reference_prefill(model, generate)
            prompt = prompts.stream(SynthesisRequest.of(vars(case)), Listener(), "").prompt
            rows = talker.embed(torch.from_numpy(prompt.text_ids).long(), torch.from_numpy(prompt.code_ids).long())
            torch.testing.assert_close(rows, captured["inputs_embeds"][0], atol=1e-5, rtol=1e-5)
            trailing = talker.text_table[torch.tensor(prompt.trailing or [checkpoint.config.tts_pad_token_id])]
            torch.testing.assert_close(trailing, captured["trailing_text_hidden"][0], atol=1e-5, rtol=1e-5)
