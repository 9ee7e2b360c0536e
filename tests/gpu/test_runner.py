"""The CUDA runner with graphs, compared with eager operations and with the CPU runner."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker import graph_runner
from qwen3_tts_engine.talker.graph_runner import GraphTalkerRunner
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.runner import TalkerRunner
from qwen3_tts_engine.talker.tick_graph import TickGraph
from qwen3_tts_engine.voice import Voice
from tests.conftest import CheckpointOf
from tests.fakes.scripted import Listener
from tests.gpu.conftest import DEVICE, KERNEL_PATH

FRAMES = 40
SLOTS = 16
JOINING = 3
TEXTS = ("Hello there.", "What a day it is", "Numbers", "No", "Once upon a time there was", "Yes, of course")
PAGE = 32
# Streams of the largest tick that has memory.
PART = 4
CPU = torch.device("cpu")


def config_of(checkpoint: Checkpoint, **settings: object) -> EngineConfig:
    fixed = {"checkpoint": str(checkpoint.folder), "kernels": "required", "kernel_path": KERNEL_PATH}
    sizes = {"max_streams": SLOTS, "max_text_tokens": 700, "max_frames_limit": 512, "kv_cache_gib": 0.1}
    sizes |= {"part_text_tokens": 0, "page_size": PAGE}  # a long text is one prompt
    return EngineConfig.model_validate({**fixed, **sizes, **settings})


@pytest.fixture(scope="module")
def graphs(checkpoint: Checkpoint) -> GraphTalkerRunner:
    runner = load_runner(checkpoint, config_of(checkpoint), DEVICE)
    assert isinstance(runner, GraphTalkerRunner)
    return runner


def newcomer(checkpoint: Checkpoint, slot: int, text: str = "Hello there.", **fields: object) -> Newcomer:
    prompts = PromptBuilder(checkpoint, config_of(checkpoint))
    request = SynthesisRequest.of({"text": f"{text} {slot}", "speaker": "ryan", "seed": slot, **fields})
    stream = prompts.stream(request, Listener(), str(slot))
    pages = -(-stream.num_positions // PAGE)
    return Newcomer(stream, slot, list(range(slot * 40, slot * 40 + pages)))


@contextmanager
def forbid_device_sync() -> Iterator[None]:
    """Raises on device synchronisation, except for the event wait that reads frames."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@torch.inference_mode()
def prefill(runner: TalkerRunner, newcomers: list[Newcomer]) -> None:
    """Prefill without waiting for a launch."""
    assert runner.prefill(newcomers) == []
    if isinstance(runner, GraphTalkerRunner):
        runner._prefill_pending()


def speak(runner: TalkerRunner, newcomers: list[Newcomer], *, together: bool = False) -> np.ndarray:
    """Codes [FRAMES, rows, codebooks], past the end of speech.

    Prefills one prompt at a time, unless `together`, as rounding depends on the shape of a prefill.
    """
    for group in [newcomers] if together else [[one] for one in newcomers]:
        assert runner.prefill(group) == []
    slots = np.array([n.slot for n in newcomers])
    made = []
    launched = runner.launch(slots)
    for _ in range(FRAMES - 1):
        following = runner.launch(slots)
        made.append(runner.collect(launched).codes.copy())
        launched = following
    made.append(runner.collect(launched).codes.copy())
    return np.stack(made)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 11, 16])
def test_graphs_equal_eager_operations(checkpoint: Checkpoint, graphs: TalkerRunner, rows: int) -> None:
    """Sampled codes are equal, including batches padded to their bucket."""
    eager = load_runner(checkpoint, config_of(checkpoint, kernels="eager"), DEVICE)
    newcomers = [newcomer(checkpoint, slot) for slot in range(rows)]
    with forbid_device_sync():
        found = speak(graphs, newcomers)
    np.testing.assert_array_equal(found, speak(eager, newcomers))
    # The position of the padding slot stays 0, so that its attention cost does not grow.
    assert graphs._state.position[graphs._state.padding_slot] == 0


def test_codes_do_not_depend_on_other_rows(checkpoint: Checkpoint, graphs: TalkerRunner) -> None:
    """Up to 8 rows use the same kernels, so a row's arithmetic does not depend on the others."""
    batched = speak(graphs, [newcomer(checkpoint, slot) for slot in range(8)])
    for slot in (0, 3, 7):
        np.testing.assert_array_equal(speak(graphs, [newcomer(checkpoint, slot)])[:, 0], batched[:, slot])
    other_order = speak(graphs, [newcomer(checkpoint, slot) for slot in (5, 2, 7)])
    np.testing.assert_array_equal(other_order, batched[:, [5, 2, 7]])


def test_batch_invariant_codes_do_not_depend_on_the_batch(checkpoint: Checkpoint) -> None:
    """Codes from a shared prefill and larger batches equal those of a stream alone."""
    runner = load_runner(checkpoint, config_of(checkpoint, batch_invariant=True), DEVICE)
    batched = speak(runner, [newcomer(checkpoint, slot) for slot in range(SLOTS)], together=True)
    for slot in (0, 7, SLOTS - 1):
        np.testing.assert_array_equal(speak(runner, [newcomer(checkpoint, slot)])[:, 0], batched[:, slot])


def test_ticks_in_parts_give_the_same_codes(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks run in parts where the GPU has no memory for larger graphs."""
    config = config_of(checkpoint, batch_invariant=True)
    whole = speak(load_runner(checkpoint, config, DEVICE), [newcomer(checkpoint, slot) for slot in range(SLOTS)])

    class SmallGraph(TickGraph):
        def __init__(self, padding: Sequence[np.ndarray], run: Any, *rest: Any) -> None:
            super().__init__(padding, run, *rest)
            if getattr(run, "__name__", "") in ("_step", "_predict") and len(padding[0]) > PART:
                raise torch.OutOfMemoryError("CUDA out of memory (injected)")

    monkeypatch.setattr(graph_runner, "TickGraph", SmallGraph)
    monkeypatch.setattr(graph_runner, "NEEDED_ROWS", PART)
    runner = load_runner(checkpoint, config, DEVICE)
    assert isinstance(runner, GraphTalkerRunner)
    assert runner._steps.most == runner._codes.most == PART < SLOTS
    np.testing.assert_array_equal(speak(runner, [newcomer(checkpoint, slot) for slot in range(SLOTS)]), whole)


def test_long_and_concurrent_prompts_write_the_same_cache(checkpoint: Checkpoint, graphs: TalkerRunner) -> None:
    """Prompts of 600 rows prefilled alone, together and on the CPU write equal keys and values, up to rounding."""
    long = [newcomer(checkpoint, slot, "one two three four five six seven. " * 25) for slot in range(3)]
    assert sum(len(n.stream.prompt) for n in long) > 512
    cpu = load_runner(checkpoint, config_of(checkpoint), CPU)
    caches = []
    for runner, groups in ((graphs, [[n] for n in long]), (graphs, [long]), (cpu, [long])):
        for group in groups:
            prefill(runner, group)
        pages = torch.tensor([page for n in long for page in n.pages[: len(n.stream.prompt) // PAGE]])
        rows = pages[:, None] * PAGE + torch.arange(PAGE)
        caches.append(runner.cache.data[:, :, rows.flatten().to(runner._device)].float().cpu())
        caches.append(runner._state.input[:3].float().cpu())
    for one in (0, 1):
        reference = caches[4 + one]
        for found in (caches[one], caches[2 + one]):
            assert float((found - reference).norm() / reference.norm()) < 0.02


def join(runner: TalkerRunner, newcomers: list[Newcomer], frames: int) -> np.ndarray:
    """Codes [frames, rows, codebooks] from the tick on in which the last JOINING streams join the others."""
    slots = np.array([n.slot for n in newcomers])
    assert runner.prefill(newcomers[:-JOINING]) == []
    runner.collect(runner.launch(slots[:-JOINING]))
    assert runner.prefill(newcomers[-JOINING:]) == []
    return np.stack([runner.collect(runner.launch(slots)).codes for _ in range(frames)])


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[TickGraph]:
    """Graphs in the order of their replays."""
    graphs, replay = list[TickGraph](), TickGraph.replay

    def record(graph: TickGraph, *inputs: np.ndarray) -> Any:
        graphs.append(graph)
        return replay(graph, *inputs)

    monkeypatch.setattr(TickGraph, "replay", record)
    return graphs


def test_prompts_in_a_tick_agree_with_prompts_before_it(
    checkpoint: Checkpoint, graphs: GraphTalkerRunner, replayed: list[TickGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values agree up to rounding, greedy codes of that tick except for near ties."""
    newcomers = [newcomer(checkpoint, slot, temperature=0.0) for slot in range(SLOTS)]
    rows = [(n.pages[row // PAGE], row % PAGE) for n in newcomers for row in range(len(n.stream.prompt))]
    places = torch.tensor([page * PAGE + row for page, row in rows], device=DEVICE)
    joints, found = graphs._joints, []
    for one in (joints, {}):
        monkeypatch.setattr(graphs, "_joints", one)
        graphs.cache.data.zero_()
        with forbid_device_sync():
            codes = join(graphs, newcomers, 1)
        assert (replayed[-2] in joints[SLOTS].captured.values()) == bool(one)
        found.append((codes, graphs.cache.data[:, :, places].float(), graphs._state.position[:SLOTS].clone()))
    (joint, joint_cache, joint_positions), (separate, cache, positions) = found
    assert float((joint_cache - cache).norm() / cache.norm()) < 0.02
    assert torch.equal(joint_positions, positions)
    print(
        f"agreement of the established {(joint == separate)[:, :-JOINING].mean():.2f}, of the newcomers "
        f"{(joint == separate)[:, -JOINING:].mean():.2f}"
    )
    assert (joint == separate).mean() > 0.6


def test_batch_invariant_codes_do_not_depend_on_prompts_in_the_tick(
    checkpoint: Checkpoint, replayed: list[TickGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(checkpoint, config_of(checkpoint, batch_invariant=True), DEVICE)
    assert isinstance(runner, GraphTalkerRunner)
    joints = [graph for joint in runner._joints.values() for graph in joint.captured.values()]
    newcomers = [newcomer(checkpoint, slot) for slot in range(SLOTS)]
    replayed.clear()  # of those of the proof
    joint = join(runner, newcomers, FRAMES)
    assert sum(graph in joints for graph in replayed) == 1
    monkeypatch.setattr(runner, "_joints", {})
    np.testing.assert_array_equal(join(runner, newcomers, FRAMES), joint)


def test_greedy_codes_of_first_frames_agree_with_the_cpu(checkpoint: Checkpoint, graphs: TalkerRunner) -> None:
    """bfloat16 and float32 with random weights agree except for near ties; a code counts if all before it agree."""
    cpu, slots = load_runner(checkpoint, config_of(checkpoint), CPU), np.arange(SLOTS)
    same = []
    for text in TEXTS:
        for slot in slots:
            one = newcomer(checkpoint, slot, text, temperature=0.0)
            assert graphs.prefill([one]) == cpu.prefill([one]) == []
        found, expected = (runner.collect(runner.launch(slots)).codes for runner in (graphs, cpu))
        same.append(np.cumprod(found == expected, axis=1))
    equal = np.concatenate(same)
    share = equal.sum() / (len(equal) + equal[:, :-1].sum())
    print(f"agreement of a code {share:.3f}, of a first frame's codes {equal.mean():.2f}")
    assert share > 0.95


def test_logits_agree_with_the_cpu_within_bfloat16(checkpoint: Checkpoint) -> None:
    """The distance is relative to the spread of the logits."""
    runners = [load_runner(checkpoint, config_of(checkpoint), device) for device in (DEVICE, CPU)]
    logits = []
    for runner in runners:
        prefill(runner, [newcomer(checkpoint, slot) for slot in range(4)])
        with torch.inference_mode():
            rows = runner._ops.rows(runner._state, torch.arange(4, device=runner._device))
            attention = runner._ops.paged_attention(runner.cache, rows.slots, rows.positions)
            logits.append(runner._talker.logits(runner._talker.forward(rows.hidden, attention)).cpu())
    distance = float((logits[0] - logits[1]).norm() / (logits[1] - logits[1].mean()).norm())
    print(f"distance of bfloat16 logits: {distance:.4f}")
    assert distance < 0.03


def clone(prompts: PromptBuilder, hidden: int, slot: int) -> Newcomer:
    """A stream with a cloned voice: 1 to 89 reference frames, or x-vector only."""
    random = np.random.default_rng(slot)
    vector, codes = (
        random.normal(0, 0.3, hidden).astype(np.float32),
        random.integers(0, 2048, (1 + 8 * slot, 16), np.int32),
    )
    voice = Voice(vector, codes, "What the reference says.") if slot % 3 else Voice(vector)
    request = SynthesisRequest.of({"text": f"Hello there. {slot}", "voice": "any", "seed": slot}).in_voice(voice)
    stream = prompts.stream(request, Listener(), str(slot))
    pages = -(-stream.num_positions // PAGE)
    return Newcomer(stream, slot, list(range(slot * 40, slot * 40 + pages)))


def test_cloned_voices_agree_with_eager_operations(checkpoint_of: CheckpointOf) -> None:
    """Graphs and eager operations agree; a reused slot keeps nothing of the previous voice."""
    base = Checkpoint.open(str(checkpoint_of("base")))
    prompts, hidden = PromptBuilder(base, config_of(base)), base.config.talker_config.hidden_size
    graphs, eager = (load_runner(base, config_of(base, kernels=kind), DEVICE) for kind in ("required", "eager"))
    # Alone, since products of other numbers of rows round differently.
    by_vector = speak(graphs, [clone(prompts, hidden, slot) for slot in (0, 3, 6)])
    clones = [clone(prompts, hidden, slot) for slot in range(12)]
    expected = speak(eager, clones)
    with forbid_device_sync():
        found = speak(graphs, clones)
    np.testing.assert_array_equal(found, expected)
    assert graphs._state.vectors[-1].abs().max() == 0, "the padding slot has an x-vector"
    again = [clone(prompts, hidden, slot) for slot in (0, 3, 6)]
    swapped = [Newcomer(n.stream, slot, n.pages) for n, slot in zip(again, (3, 6, 0), strict=True)]
    np.testing.assert_array_equal(speak(graphs, swapped), by_vector)
