"""Requests that exceed the limits of the server or the checkpoint are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.checkpoint.alignment import Alignment, AlignmentHeads, TextLayout
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import ConfigError, EngineConfig
from qwen3_tts_engine.frontend import text_rules
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import InvalidRequest, SynthesisRequest
from qwen3_tts_engine.voice import Voice
from tests.conftest import CheckpointOf
from tests.fakes.checkpoints import fine_tune
from tests.fakes.scripted import Listener


def builder(folder: Path, alignment: Alignment | None = None, **settings: Any) -> PromptBuilder:
    config = EngineConfig(checkpoint=str(folder), max_text_tokens=64, max_frames_limit=64, **settings)
    return PromptBuilder(Checkpoint.open(str(folder)), config, alignment)


def aligned(*layouts: TextLayout) -> Alignment:
    heads = AlignmentHeads(heads=[(0, 0)], advance=[0.5, 0.5], scores={})
    return Alignment(talker_digest="", layouts=dict.fromkeys(layouts, heads))


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


def test_word_times_require_heads_of_the_layout(tiny_checkpoint: Path) -> None:
    request = SynthesisRequest.of({"text": "Hello.", "speaker": "ryan", "word_times": True})
    with pytest.raises(InvalidRequest, match=r"^word_times: True: requires .* layout full: this checkpoint has none"):
        builder(tiny_checkpoint).stream(request, Listener(), "any")
    streaming = builder(tiny_checkpoint, aligned("streaming"))
    with pytest.raises(InvalidRequest, match="in the layout full: this checkpoint has them in streaming"):
        streaming.check(request)
    assert streaming.streamed(request, Listener(), "any").stream.words is not None
    with pytest.raises(InvalidRequest, match="in the layout streaming: this checkpoint has them in full"):
        builder(tiny_checkpoint, aligned("full")).streamed(request, Listener(), "any")


def test_a_stream_has_the_words_of_all_its_parts(tiny_checkpoint: Path) -> None:
    text = "  One two three. Four,  five. "
    fields = {"text": text, "speaker": "ryan", "max_frames": 8}
    prompts = builder(tiny_checkpoint, aligned("full"), part_text_tokens=4)
    assert prompts.stream(SynthesisRequest.of(fields), Listener(), "any").words is None
    stream = prompts.stream(SynthesisRequest.of(fields | {"word_times": True}), Listener(), "any")
    assert stream.prompt.layout == "full"
    assert stream.words is not None
    frame = 0
    for part, prompt in enumerate((stream.prompt, *stream.following)):
        for token in range(prompt.num_spoken + 1):
            stream.words.observe(frame, part, token, None)
            frame += 1
    told = [json.loads(event.to_json(0)) for event in stream.words.finish(frame)]
    spans = [(event["word"], event["first"], event["last"]) for event in told if "word" in event]
    assert [word for word, *_ in spans] == text.split()
    assert [text[first : last + 1] for _, first, last in spans] == text.split()
    assert stream.words.spoken_share == 1.0


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


def test_the_servers_lexicon_comes_after_the_requests(tiny_checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "lexicon.json"
    file.write_text('{"one": "two", "three": "four"}')
    prompts = builder(tiny_checkpoint, lexicon_file=str(file))

    def ids(**fields: str) -> list[int]:
        request = SynthesisRequest.of({"speaker": "ryan", "max_frames": 8} | fields)
        found: list[int] = prompts.stream(request, Listener(), "any").prompt.text_ids.tolist()
        return found

    assert ids(text="one three") == ids(text="two four")
    assert ids(text="one", lexicon='{"one": "five"}') == ids(text="five")
    file.write_text("[]")
    with pytest.raises(ConfigError, match=r"^lexicon_file: .*lexicon.json: lexicon: '\[\]': a JSON object"):
        builder(tiny_checkpoint, lexicon_file=str(file))
    with pytest.raises(ConfigError, match="No such file"):
        builder(tiny_checkpoint, lexicon_file=str(tmp_path / "missing"))


@pytest.mark.parametrize("policy", ["plain", "refuse"])
def test_a_request_chooses_another_policy_than_the_servers(tiny_checkpoint: Path, policy: str) -> None:
    prompts = builder(tiny_checkpoint, text_policy=policy)

    def ids(text: str, **fields: str) -> list[int]:
        request = SynthesisRequest.of({"text": text, "speaker": "ryan", "max_frames": 8} | fields)
        found: list[int] = prompts.stream(request, Listener(), "any").prompt.text_ids.tolist()
        return found

    verbatim = ids("*Hi*", text_policy="verbatim")
    assert len(verbatim) > len(ids("Hi"))
    if policy == "plain":
        assert ids("*Hi*") == ids("Hi")
    else:
        with pytest.raises(InvalidRequest, match="emphasis is refused"):
            ids("*Hi*")


def test_the_setting_writes_numbers_out_where_there_are_rules(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = builder(tiny_checkpoint, normalize_text=True)

    def ids(text: str, **fields: Any) -> list[int]:
        request = SynthesisRequest.of({"text": text, "speaker": "ryan", "max_frames": 8} | fields)
        found: list[int] = prompts.stream(request, Listener(), "any").prompt.text_ids.tolist()
        return found

    assert ids("I have 2.") == ids("I have two.") != ids("I have 2.", normalize_text=False)
    assert ids("Ich habe 2.", language="german") == ids("Ich habe 2.", language="german", normalize_text=False)
    with pytest.raises(InvalidRequest, match="not for german"):
        ids("Ich habe 2.", language="german", normalize_text=True)
    monkeypatch.setattr(text_rules, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="normalize_text requires the package wetext"):
        builder(tiny_checkpoint, normalize_text=True)
    with pytest.raises(InvalidRequest, match="normalize_text: True: normalize_text requires the package wetext"):
        ids("2", normalize_text=True)


@pytest.mark.parametrize("pieces", [["One. <break time='1s'/><break time='2s'/> Two.", " Three.<break time='3s'/>"]])
def test_a_pause_belongs_to_the_part_after_it(tiny_checkpoint: Path, pieces: list[str]) -> None:
    prompts = builder(tiny_checkpoint)
    request = SynthesisRequest.of({"text": "".join(pieces), "speaker": "ryan", "max_frames": 8})
    streamed = prompts.streamed(request, Listener(), "streamed")
    for number, piece in enumerate(pieces, 1):
        streamed.apply(streamed.read(piece, number == len(pieces)), number == len(pieces))
    for stream in (prompts.stream(request, Listener(), "whole"), streamed.stream):
        assert [prompt.pause for prompt in (stream.prompt, *stream.following)] == [0, 72_000]
        assert stream.last_pause == 72_000
