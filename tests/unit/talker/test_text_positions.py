"""Runners follow the demo voice through its text, alone and in mixed batches, on the CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.alignment import Alignment, AlignmentHeads, TextLayout
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import MILLION, Newcomer, TextFeed
from qwen3_tts_engine.core.streams import NONE
from qwen3_tts_engine.core.words import MIN_CONFIDENCE
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker.graph_runner import MIN_JOINT_FRAMES
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.runner import TalkerRunner
from qwen3_tts_engine.talker.text_tracker import BLOCK
from qwen3_tts_engine.voice import Voice
from tests.fakes.scripted import Listener
from tests.unit.talker.demo_clone import base_checkpoint, clone
from tests.unit.talker.test_graph_rows import as_graph_runner
from tests.unit.talker.test_joint_frames import EagerGraphRunner

DEMO = Path(__file__).parents[3] / "scripts" / "demo_voice" / "tiny-speaking"
TEXT = "The train to the coast is running about ten minutes late."
ADVANCE = [0.74, 0.18, 0.06, 0.02]
# What the exporter chooses (docs/word-times.md).
CHOSEN = {"full": [(2, 1), (2, 3), (2, 0), (3, 1)], "streaming": [(2, 0), (2, 3), (2, 1)]}
ALIGNMENT = Alignment(
    talker_digest="",
    layouts={layout: AlignmentHeads(heads=CHOSEN[layout], advance=ADVANCE, scores={}) for layout in CHOSEN},  # type: ignore[misc]
)
SLOTS, MANY_SLOTS, MAX_FRAMES = 5, 24, 80
CPU = torch.device("cpu")


def config(layout: TextLayout, kernels: str, slots: int = SLOTS) -> EngineConfig:
    sizes = {
        "max_streams": slots,
        "max_text_tokens": 128,
        "part_text_tokens": 0,
        "max_frames_limit": 128,
        "talker_proof_seconds": 0,
    }
    settings = {"checkpoint": str(DEMO), "text_layout": layout, "kernels": kernels, **sizes}
    return EngineConfig.model_validate(settings)


class Speaking:
    """A runner, and streams in its slots."""

    def __init__(self, kernels: str, slots: int = SLOTS, device: torch.device = CPU) -> None:
        self.checkpoint = Checkpoint.open(str(DEMO))
        self.runner = load_runner(self.checkpoint, config("full", kernels, slots), device, ALIGNMENT)

    def newcomer(
        self,
        slot: int,
        layout: TextLayout = "full",
        text: str = TEXT,
        *,
        word_times: bool = True,
        voice: Voice | None = None,
        **fields: Any,
    ) -> Newcomer:
        prompts = PromptBuilder(self.checkpoint, config(layout, "off"), ALIGNMENT)
        request = {"text": text, "language": "english", "seed": 2, "word_times": word_times}
        request |= {"voice": "any", "cloned": voice} if voice else {"speaker": "vivian"}
        stream = prompts.stream(SynthesisRequest.of(request), Listener(), str(slot))
        pages = self.runner.limits.num_pages // self.runner.limits.num_slots
        return Newcomer(stream, slot, list(range(slot * pages, (slot + 1) * pages)), **fields)

    def begin(self, *newcomers: Newcomer) -> None:
        assert self.runner.prefill(list(newcomers)) == []

    def frames(self, slots: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Codes and Frames.spoken until the first slot ends."""
        for _ in range(MAX_FRAMES):
            made = self.runner.collect(self.runner.launch(np.array(slots)))
            if made.ended[0]:
                return
            yield made.codes, made.spoken

    def spoken(self, slots: list[int], row: int = 0) -> np.ndarray:
        """int64 [frames, 2]"""
        rows = [spoken[row] for _, spoken in self.frames(slots) if spoken is not None]
        return np.array(rows)


@pytest.fixture(scope="module")
def pytorch() -> Speaking:
    return Speaking("off")


@pytest.fixture(scope="module")
def graphs() -> Speaking:
    return Speaking("required")


@pytest.mark.parametrize("layout", ["full", "streaming"])
def test_a_position_passes_from_the_first_token_to_the_end(graphs: Speaking, layout: TextLayout) -> None:
    newcomer = graphs.newcomer(0, layout)
    graphs.begin(newcomer)
    assert_followed(newcomer, graphs.spoken([0]), margin=0.15)


@pytest.mark.parametrize("layout", ["full", "streaming"])
def test_a_position_passes_through_the_text_after_that_of_a_reference(
    graphs: Speaking, layout: TextLayout, tmp_path: Path
) -> None:
    cloned = Speaking.__new__(Speaking)
    cloned.checkpoint, cloned.runner = base_checkpoint(tmp_path), graphs.runner
    newcomer = cloned.newcomer(0, layout, voice=clone())
    cloned.begin(newcomer)
    assert_followed(newcomer, cloned.spoken([0]), margin=0.1)


def assert_followed(newcomer: Newcomer, spoken: np.ndarray, margin: float) -> None:
    """The position passes through the text by 0 to 3 tokens a frame; confidence exceeds its bound by `margin`."""
    assert spoken[0].tolist() == [0, NONE]
    assert set(np.diff(spoken[:, 0])) <= set(range(4))
    assert spoken[-1, 0] >= newcomer.stream.prompt.num_spoken - 1
    assert spoken[1:, 1].mean() / MILLION > MIN_CONFIDENCE + margin


@pytest.mark.parametrize("layout", ["full", "streaming"])
def test_wrong_heads_are_not_confident(layout: TextLayout) -> None:
    """Those of the first layer."""
    wrong = AlignmentHeads(heads=[(0, 0), (0, 1), (1, 0)], advance=ADVANCE, scores={})
    checkpoint = Checkpoint.open(str(DEMO))
    speaking = Speaking.__new__(Speaking)
    speaking.checkpoint = checkpoint
    alignment = Alignment(talker_digest="", layouts=dict.fromkeys(CHOSEN, wrong))  # type: ignore[arg-type]
    speaking.runner = load_runner(checkpoint, config("full", "required"), CPU, alignment)
    speaking.begin(speaking.newcomer(0, layout))
    spoken = speaking.spoken([0])
    # In the streaming layout the first frames see little text, so that their attention is near any position.
    assert spoken[20:, 1].mean() / MILLION < MIN_CONFIDENCE - 0.1


@pytest.mark.parametrize("layout", ["full", "streaming"])
def test_graphs_compute_what_pytorch_does(graphs: Speaking, pytorch: Speaking, layout: TextLayout) -> None:
    found = []
    for speaking in (graphs, pytorch):
        speaking.begin(speaking.newcomer(1, layout))
        found.append(speaking.spoken([1]))
    np.testing.assert_array_equal(found[0][:, 0], found[1][:, 0])
    np.testing.assert_allclose(found[0][:, 1], found[1][:, 1], atol=100)


def test_rows_do_not_depend_on_each_other(graphs: Speaking) -> None:
    """Both layouts, one without word times, one with a longer text, one that begins later."""
    alone = []
    for layout in ("full", "streaming"):
        graphs.begin(graphs.newcomer(0, layout))
        alone.append(graphs.spoken([0]))
    longer = graphs.newcomer(4, text=f"{TEXT} " * 6)
    assert longer.stream.prompt.num_spoken > BLOCK
    graphs.begin(graphs.newcomer(1), graphs.newcomer(2, word_times=False), graphs.newcomer(3, "streaming"), longer)
    frames = graphs.frames([1, 2, 3, 4])
    together = [next(frames)[1] for _ in range(5)]
    graphs.begin(graphs.newcomer(0))
    together += [spoken for _, spoken in graphs.frames([1, 2, 3, 0, 4])]
    for row, expected in ((0, alone[0]), (2, alone[1])):
        found = np.array([spoken[row] for spoken in together if spoken is not None])
        np.testing.assert_array_equal(found, expected[: len(found)])
    later = np.array([spoken[3] for spoken in together[5:] if spoken is not None])
    np.testing.assert_array_equal(later, alone[0][: len(later)])


def test_a_batch_without_word_times_tracks_nothing(graphs: Speaking, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs.begin(graphs.newcomer(0, word_times=False), graphs.newcomer(1, word_times=False))
    monkeypatch.setattr(graphs.runner, "_track", lambda *_: pytest.fail("tracks"))
    assert [spoken for _, spoken in graphs.frames([0, 1])][:3] == [None] * 3


def test_codes_are_those_without_word_times(graphs: Speaking) -> None:
    made = []
    for word_times in (True, False):
        graphs.begin(graphs.newcomer(0, word_times=word_times))
        made.append(np.stack([codes for codes, _ in graphs.frames([0])]))
    np.testing.assert_array_equal(*made)


def test_a_stream_that_was_parked_continues_at_its_token(graphs: Speaking) -> None:
    graphs.begin(graphs.newcomer(0))
    made = list(graphs.frames([0]))
    codes = np.concatenate([codes for codes, _ in made]).astype(np.int16)
    whole = np.array([spoken[0, 0] for _, spoken in made if spoken is not None])
    at = len(whole) // 2
    graphs.begin(graphs.newcomer(0, frames=codes[:at], token=int(whole[at - 1])))
    rest = graphs.spoken([0])
    assert rest[0].tolist() == [whole[at - 1], NONE]
    # The first frame observes nothing, and the filter begins again: it catches up within a few frames.
    assert (np.abs(rest[:, 0] - whole[at:]) <= 2).all()
    np.testing.assert_array_equal(rest[6:, 0], whole[at + 6 :])


def test_text_that_arrives_while_it_is_spoken_is_followed(graphs: Speaking) -> None:
    """Two tokens at a time; the rest is not known."""
    newcomer = graphs.newcomer(0, "streaming")
    prompt = newcomer.stream.prompt
    rest, known = prompt.trailing[4:], prompt.num_spoken
    prompt.trailing, prompt.num_spoken, prompt.is_open = prompt.trailing[:4], 5, True
    graphs.begin(newcomer)
    assert graphs.runner._state.text[0].tolist() == [2, prompt.text_at, 6]
    tokens = []
    for frame in range(MAX_FRAMES):
        if frame < len(rest) and frame % 2 == 0:
            ids = rest[frame : frame + 2]
            is_last = frame + 2 >= len(rest)
            spoken = known if is_last else 5 + frame + len(ids)
            graphs.runner.feed([TextFeed(0, 4 + frame, ids, not is_last, late=False, num_spoken=spoken)])
            assert graphs.runner._state.text[0, 2] == spoken + 1
        made = graphs.runner.collect(graphs.runner.launch(np.array([0])))
        if made.ended[0]:
            break
        assert made.spoken is not None
        tokens.append(int(made.spoken[0, 0]))
    assert tokens == sorted(tokens)
    assert tokens[-1] >= known - 1


def test_a_graph_with_fresh_slots_tracks_the_others(pytorch: Speaking) -> None:
    """The talker does not run for a fresh slot, whose token is that at which it was opened."""
    pytorch.begin(pytorch.newcomer(0), pytorch.newcomer(2, word_times=False))
    list(zip(range(6), pytorch.frames([0, 2]), strict=False))
    pytorch.begin(pytorch.newcomer(1, token=3))
    runner = pytorch.runner
    state, tensors = runner._state, saved_tensors(runner)
    saved = [tensor.clone() for tensor in tensors]
    expected = runner.collect(runner.launch(np.arange(3)))
    for tensor, before in zip(tensors, saved, strict=True):
        tensor.copy_(before)
    with torch.inference_mode():
        spoken = as_graph_runner(runner)._step(torch.tensor([0, 2, state.padding_slot]), tracked=True)
    assert expected.spoken is not None
    assert spoken is not None
    assert spoken[0, 0] == expected.spoken[0, 0]
    # Products of several rows round differently.
    assert spoken[0, 1].item() == pytest.approx(expected.spoken[0, 1], abs=100)
    assert spoken[0, 1] > 0
    assert expected.spoken[1].tolist() == state.spoken[1].tolist() == [3, NONE]


def saved_tensors(runner: TalkerRunner) -> list[torch.Tensor]:
    state, tracker = runner._state, runner._tracker
    assert tracker is not None
    return [state.input, state._fields, state.seen, runner.cache.data, tracker.probability]


def test_graphs_of_a_gpu_track_beside_prompts_and_alone() -> None:
    """First frames alone, beside others, and prompts in the tick of others; a few streams have word times."""
    plain, graphs = Speaking("off", MANY_SLOTS), Speaking("off", MANY_SLOTS)
    runner = EagerGraphRunner.__new__(EagerGraphRunner)
    runner.__dict__.update(graphs.runner.__dict__)
    runner.capture()
    graphs.runner = runner
    established = list(range(MIN_JOINT_FRAMES))
    both = (plain, graphs)

    def step(slots: list[int]) -> list[np.ndarray | None]:
        expected, found = (one.runner.collect(one.runner.launch(np.array(slots))) for one in both)
        # Each frame follows from the same codes.
        for one in both:
            one.runner.replace_input(np.array(slots), expected.codes)
        return [expected.spoken, found.spoken]

    for one in both:
        one.begin(*(one.newcomer(slot, word_times=slot % 5 == 0) for slot in established))
    ticks = [step(established) for _ in range(4)]
    for one in both:
        one.begin(one.newcomer(20, token=4), one.newcomer(21, word_times=False))
    ticks += [step([*established, 20, 21]) for _ in range(3)]
    assert len(runner.joint_replays()) == 1
    for expected, found in ticks:
        assert expected is not None
        assert found is not None
        tracked = [row for row in range(len(found)) if (row % 5 == 0 and row < MIN_JOINT_FRAMES) or row == 16]
        np.testing.assert_array_equal(found[tracked, 0], expected[tracked, 0])
        np.testing.assert_allclose(found[tracked, 1], expected[tracked, 1], atol=200)
    assert ticks[4][1] is not None
    assert ticks[4][1][16].tolist() == [4, NONE]
    assert step([1, 2, 21]) == [None, None], "none of these has word times"
