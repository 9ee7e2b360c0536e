"""Prompt rows that run in a tick, on the CPU without graphs, against prompts prefilled before it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.talker import graph_runner
from qwen3_tts_engine.talker.graph_runner import (
    MIN_JOINT_FRAMES,
    ROW_BUCKETS,
    GraphTalkerRunner,
    PinnedTick,
    joint_prompts,
)
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.tick_graph import Run
from tests.conftest import CheckpointOf
from tests.unit.talker.test_graph_rows import clone

pytestmark = pytest.mark.long

SLOTS, ESTABLISHED, TICKS = 24, 14, 3


class Event:
    """A CUDA event whose work is done."""

    def record(self, stream: None) -> None: ...

    def synchronize(self) -> None: ...


class EagerGraph:
    """A TickGraph that runs its function in every replay."""

    stream = None

    def __init__(self, padding: Sequence[np.ndarray], run: Run) -> None:
        self._padding, self._run = padding, run
        self.replays = 0

    def replay(self, *inputs: np.ndarray) -> Any:
        self.replays += 1
        both = zip(inputs, self._padding, strict=True)
        return self._run(*(torch.from_numpy(np.concatenate([rows, unused[len(rows) :]])) for rows, unused in both))


class EagerGraphRunner(GraphTalkerRunner):
    """A graph runner without CUDA."""

    def _capture(self, padding: Sequence[np.ndarray], run: Run) -> EagerGraph:  # type: ignore[override]
        return EagerGraph(padding, run)

    def _make_memory(self) -> PinnedTick:
        codes, spoken = (torch.empty((self.limits.num_slots, columns), dtype=torch.int64) for columns in (16, 2))
        return PinnedTick(codes, spoken, Event())  # type: ignore[arg-type]

    def joint_replays(self) -> list[tuple[int, int]]:
        """(frame rows, prompt rows) of the joint graphs replayed so far."""
        graphs = (
            (frames, prompts, graph)
            for frames, joint in self._joints.items()
            for prompts, graph in joint.captured.items()
        )
        return [(frames, prompts) for frames, prompts, graph in graphs for _ in range(graph.replays)]  # type: ignore[attr-defined]

    def prefill_replays(self) -> int:
        graphs = [*self._prefills.captured.values(), *self._entries.captured.values()]
        return sum(graph.replays for graph in graphs)  # type: ignore[attr-defined]


class Pair:
    """A runner that prefills prompts before the tick, and one of joint ticks; each step must give equal results."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        sizes = {"max_streams": SLOTS, "max_text_tokens": 64, "max_frames_limit": 64, "talker_proof_seconds": 0}
        config = EngineConfig.model_validate({"checkpoint": str(checkpoint.folder), **sizes})
        self.prompts = PromptBuilder(checkpoint, config)
        self.separate, loaded = (load_runner(checkpoint, config, torch.device("cpu")) for _ in range(2))
        self.joint = EagerGraphRunner.__new__(EagerGraphRunner)
        self.joint.__dict__.update(loaded.__dict__)
        self.joint.capture()

    def newcomer(self, slot: int) -> Newcomer:
        """A cloned voice; by x-vector in slot 0."""
        return clone(self.prompts, slot, self.separate.limits.page_size)

    def establish(self) -> np.ndarray:
        """Prefill ESTABLISHED streams and make their first frames, codes int64 [streams, codebooks]."""
        slots = np.arange(ESTABLISHED)
        self.prefill([self.newcomer(slot) for slot in slots])
        codes = self.launch(slots)
        assert not self.joint.joint_replays()
        return codes

    def prefill(self, newcomers: list[Newcomer]) -> None:
        assert self.separate.prefill(newcomers) == self.joint.prefill(newcomers) == []

    def launch(self, slots: np.ndarray) -> np.ndarray:
        codes = self.separate.launch(slots).codes
        np.testing.assert_array_equal(self.joint.collect(self.joint.launch(slots)).codes, codes)
        return codes

    def assert_equal(self) -> None:
        """Keys, values and state of all slots."""
        caches, states = zip(
            *((runner.cache.data, runner._state) for runner in (self.separate, self.joint)), strict=True
        )
        own = self.separate.limits.num_pages * self.separate.limits.page_size
        torch.testing.assert_close(caches[1][:, :, :own], caches[0][:, :, :own], atol=1e-4, rtol=1e-4)
        for name in ("input", "position", "frame", "seen", "vectors"):
            expected, found = (getattr(state, name)[:SLOTS] for state in states)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.fixture
def pair(checkpoint_of: CheckpointOf) -> Pair:
    return Pair(Checkpoint.open(str(checkpoint_of("base"))))


@pytest.mark.parametrize("count", [1, 2, 9])
def test_newcomers_join_the_tick_of_established_streams(pair: Pair, count: int) -> None:
    """Slot ESTABLISHED + 1 speaks by x-vector alone."""
    pair.establish()
    newcomers = [pair.newcomer(ESTABLISHED + i) for i in range(count)]
    if count > 1:
        newcomers[1] = replace(pair.newcomer(0), slot=ESTABLISHED + 1, pages=newcomers[1].pages)
    before = pair.joint.prefill_replays()
    pair.prefill(newcomers)
    slots = np.arange(ESTABLISHED + count)
    pair.launch(slots)
    assert len(pair.joint.joint_replays()) == 1
    assert pair.joint.prefill_replays() == before
    for _ in range(TICKS):
        pair.launch(slots)
    pair.assert_equal()


def test_a_prompt_is_split_over_prefills_and_a_tick(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_runner, "PREFILL_BUCKETS", (4, 8))
    monkeypatch.setattr(graph_runner, "joint_prompts", lambda frames: [4, 8])
    monkeypatch.setattr(graph_runner, "MAX_PADDED_PREFILL", 8)
    pair.joint.capture()
    pair.establish()
    newcomers = [pair.newcomer(ESTABLISHED), pair.newcomer(ESTABLISHED + 1)]
    rows = sum(len(newcomer.stream.prompt) for newcomer in newcomers)
    before = pair.joint.prefill_replays()
    pair.prefill(newcomers)
    slots = np.arange(ESTABLISHED + 2)
    pair.launch(slots)
    assert pair.joint.joint_replays() == [(16, 4 if rows % 8 in range(1, 5) else 8)]
    assert pair.joint.prefill_replays() - before == (rows - 1) // 8 > 2
    pair.launch(slots)
    pair.assert_equal()


def test_a_stream_resumes_in_the_tick_of_the_others(pair: Pair) -> None:
    """Its frames are prefilled after its prompt."""
    slots = np.arange(ESTABLISHED)
    made = [codes[3] for codes in (pair.establish(), *(pair.launch(slots) for _ in range(TICKS)))]
    pair.prefill([replace(pair.newcomer(3), frames=np.array(made, np.int16))])
    pair.launch(slots)
    assert len(pair.joint.joint_replays()) == 1
    pair.assert_equal()


def test_the_slot_of_a_newcomer_without_a_frame_is_used_again(pair: Pair) -> None:
    """A prompt that no launch asks for runs with the next tick, or before the next prompts."""
    pair.establish()
    cancelled, newcomer = pair.newcomer(ESTABLISHED), pair.newcomer(ESTABLISHED + 1)
    newcomer = replace(newcomer, slot=cancelled.slot, pages=[*cancelled.pages, *newcomer.pages])
    pair.prefill([cancelled])
    pair.launch(np.arange(ESTABLISHED))
    assert len(pair.joint.joint_replays()) == 1
    before = pair.joint.prefill_replays()
    pair.prefill([cancelled])
    pair.prefill([newcomer])
    assert pair.joint.prefill_replays() == before + 1
    slots = np.arange(ESTABLISHED + 1)
    for _ in range(TICKS):
        pair.launch(slots)
    assert len(pair.joint.joint_replays()) == 2
    pair.assert_equal()


def test_a_prompt_that_ran_before_makes_its_first_frame_later(pair: Pair) -> None:
    pair.establish()
    pair.prefill([pair.newcomer(ESTABLISHED)])
    pair.launch(np.arange(ESTABLISHED))
    pair.prefill([pair.newcomer(ESTABLISHED + 1)])
    pair.launch(np.arange(ESTABLISHED + 2))
    assert len(pair.joint.joint_replays()) == 2
    pair.assert_equal()


@pytest.mark.parametrize("others", [0, 4])
def test_newcomers_beside_few_streams_are_prefilled_before_the_tick(pair: Pair, others: int) -> None:
    pair.establish()
    pair.prefill([pair.newcomer(ESTABLISHED)])
    pair.launch(np.array([*range(others), ESTABLISHED]))
    assert not pair.joint.joint_replays()
    pair.assert_equal()


def test_without_joint_sizes_all_prompts_run_before_the_tick(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_runner, "joint_prompts", lambda frames: [])
    pair.joint.capture()
    pair.establish()
    pair.prefill([pair.newcomer(ESTABLISHED)])
    pair.launch(np.arange(ESTABLISHED + 1))
    assert not pair.joint.joint_replays()
    pair.assert_equal()


def test_joint_prompts_fill_tiles_with_the_frames() -> None:
    assert joint_prompts(64) == [64, 128, 192, 320, 448]
    assert joint_prompts(32) == [64, 96, 128, 224, 352, 480]
    assert joint_prompts(1024) == [64, 128, 256, 384, 512]
    joint = [count for count in ROW_BUCKETS if count >= MIN_JOINT_FRAMES]
    assert sum(len(joint_prompts(count)) for count in joint) == 69
