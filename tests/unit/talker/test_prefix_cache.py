"""A prompt whose prefix another one has prefilled gives the same codes, on the CPU bit by bit."""

from typing import Any

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
from qwen3_tts_engine.voice import Voice
from scripts.synthetic.configs import ModelType
from tests.conftest import CheckpointOf
from tests.fakes.scripted import Listener, make_stream
from tests.unit.talker.test_graph_rows import as_graph_runner

PAGE, FRAMES = 4, 12
FIRST, SECOND = np.array([0]), np.array([1])
RANDOM = np.random.default_rng(0)
VECTOR = RANDOM.normal(0, 0.3, 64).astype(np.float32)
IN_CONTEXT = Voice(VECTOR, RANDOM.integers(0, 2048, (15, 16), np.int32), "What the reference says.")
# Type of checkpoint, layout, fields, voice and pages of the prefix, by name.
CASES: dict[str, tuple[ModelType, str, dict[str, str], Voice | None, int]] = {
    "custom voice": ("custom_voice", "full", {"speaker": "ryan", "language": "english"}, None, 2),
    "with an instruction": ("custom_voice", "streaming", {"speaker": "ryan", "instruct": "Speak slowly."}, None, 4),
    "designed": ("voice_design", "full", {"instruct": "An old man with a warm voice."}, None, 7),
    "x-vector": ("base", "streaming", {"voice": "any"}, Voice(VECTOR), 2),
    "in context": ("base", "streaming", {"voice": "any"}, IN_CONTEXT, 5),
    "in context, full": ("base", "full", {"voice": "any"}, IN_CONTEXT, 6),
}


class Speaker:
    def __init__(self, folder: str, layout: str, fields: dict[str, str], voice: Voice | None) -> None:
        sizes: dict[str, Any] = {"max_streams": 2, "max_text_tokens": 64, "max_frames_limit": 64, "page_size": PAGE}
        sizes["talker_proof_seconds"] = 0
        config = EngineConfig(checkpoint=folder, text_layout=layout, **sizes)  # type: ignore[arg-type]
        checkpoint = Checkpoint.open(folder)
        self._prompts, self._fields, self._voice = PromptBuilder(checkpoint, config), fields, voice
        self.runner: TalkerRunner = load_runner(checkpoint, config, torch.device("cpu"))

    def stream(self, text: str) -> Stream:
        request = SynthesisRequest.of({"text": text, "temperature": 0.0, **self._fields})
        request = request.in_voice(self._voice) if self._voice else request
        return self._prompts.stream(request, Listener(), text)

    def codes(self, slot: np.ndarray) -> np.ndarray:
        return np.concatenate([self.runner.collect(self.runner.launch(slot)).codes for _ in range(FRAMES)])


@pytest.mark.parametrize(("cached", "row"), [(0, 4), (3, 1), (PAGE, 0), (2 * PAGE, None)])
def test_the_x_vector_is_added_to_its_row_of_those_to_prefill(cached: int, row: int | None) -> None:
    stream = make_stream("any", Listener(), rows=3 * PAGE)
    stream.prompt.vector, stream.prompt.vector_row = VECTOR, 4
    assert Newcomer(stream, 0, [], num_cached=cached).vector_row == row


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, checkpoint_of: CheckpointOf) -> tuple[Speaker, int]:
    kind, layout, fields, voice, pages = CASES[request.param]
    return Speaker(str(checkpoint_of(kind)), layout, fields, voice), pages


def test_codes_are_the_same_with_a_cached_prefix(case: tuple[Speaker, int]) -> None:
    speaker, _ = case
    runner = speaker.runner
    first, second = speaker.stream("Something else."), speaker.stream("Hello there, my friend.")
    count = len(first.prompt.prefix_hashes)
    assert second.prompt.prefix_hashes == first.prompt.prefix_hashes
    assert runner.prefill([Newcomer(second, 1, list(range(40, 80)))]) == []
    alone, expected = runner._state.input[1].clone(), speaker.codes(SECOND)
    runner.cache.data.zero_()
    assert runner.prefill([Newcomer(first, 0, list(range(40)))]) == []
    pages = [*range(count), *range(80, 120)]
    cached = Newcomer(second, 1, pages, num_cached=count * PAGE)
    assert runner.prefill([cached]) == []
    assert torch.equal(runner._state.input[1], alone)
    np.testing.assert_array_equal(speaker.codes(SECOND), expected)
    # The same after the first has ended, from rows of a graph.
    speaker.codes(FIRST)
    graphs = as_graph_runner(runner)
    runner._state.open([cached])
    with torch.inference_mode():
        graphs._prefill_rows(torch.from_numpy(graphs._prompt_rows([cached])))
    torch.testing.assert_close(runner._state.input[1], alone, atol=1e-5, rtol=1e-5)


def test_prompts_of_one_voice_have_the_same_hashes(case: tuple[Speaker, int]) -> None:
    speaker, pages = case
    short, long = speaker.stream("No.").prompt, speaker.stream("Many more words than that one has.").prompt
    assert short.prefix_hashes == long.prefix_hashes
    assert len(long.prefix_hashes) == pages
    rows = slice(pages * PAGE)
    np.testing.assert_array_equal(short.text_ids[rows], long.text_ids[rows])
    np.testing.assert_array_equal(short.code_ids[rows], long.code_ids[rows])


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("custom voice", {"speaker": "vivian"}),
        ("custom voice", {"language": "chinese"}),
        ("with an instruction", {"instruct": "Speak fast."}),
    ],
)
def test_other_rows_have_other_hashes(checkpoint_of: CheckpointOf, name: str, changed: dict[str, str]) -> None:
    kind, layout, fields, voice, _ = CASES[name]
    one, other = (Speaker(str(checkpoint_of(kind)), layout, f, voice).stream("Hi.") for f in (fields, fields | changed))
    same = [a == b for a, b in zip(one.prompt.prefix_hashes, other.prompt.prefix_hashes, strict=False)]
    assert not all(same)
    assert same == sorted(same, reverse=True), "a page counts with all before it"


@pytest.mark.parametrize("name", ["x-vector", "in context"])
def test_another_vector_has_other_hashes(checkpoint_of: CheckpointOf, name: str) -> None:
    kind, layout, fields, voice, _ = CASES[name]
    assert voice is not None
    other = Voice(voice.x_vector + 1, voice.codes, voice.text)
    streams = [Speaker(str(checkpoint_of(kind)), layout, fields, v).stream("Hi.") for v in (voice, other)]
    one, two = (stream.prompt.prefix_hashes for stream in streams)
    assert one[0] == two[0], "role and language"
    assert one[1:] != two[1:]


def test_a_row_is_left_to_prefill(checkpoint_of: CheckpointOf) -> None:
    """The reference's text is longer than its frames: all rows of the prompt begin other prompts, too."""
    voice = Voice(
        VECTOR, RANDOM.integers(0, 2048, (3, 16), np.int32), "Much more text than there are frames of speech."
    )
    speaker = Speaker(str(checkpoint_of("base")), "streaming", {"voice": "any"}, voice)
    prompt = speaker.stream("Hello.").prompt
    assert len(prompt) % PAGE == 0
    assert len(prompt.prefix_hashes) == len(prompt) // PAGE - 1
