"""The rows from which a CUDA graph prefills prompts, run on the CPU without a graph."""

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker.graph_runner import (
    MAX_PADDED_PREFILL,
    GraphTalkerRunner,
    prefill_buckets,
)
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.runner import TalkerRunner
from qwen3_tts_engine.talker.tick_graph import Graphs
from qwen3_tts_engine.voice import Voice
from tests.conftest import CheckpointOf
from tests.fakes.scripted import Listener

pytestmark = pytest.mark.long


def test_rows_of_clones_prefill_as_their_prompts_do(checkpoint_of: CheckpointOf) -> None:
    """Clones in context and by x-vector in one call, compared with the eager prefill."""
    checkpoint = Checkpoint.open(str(checkpoint_of("base")))
    config = EngineConfig(checkpoint=str(checkpoint.folder), max_streams=4, max_text_tokens=64, max_frames_limit=64)
    prompts = PromptBuilder(checkpoint, config)
    eager = load_runner(checkpoint, config, torch.device("cpu"))
    graphs = as_graph_runner(eager)
    newcomers = [clone(prompts, slot, eager.limits.page_size) for slot in range(3)]
    assert eager.prefill(newcomers) == []
    expected, keys = eager._state.input.clone(), eager.cache.data.clone()
    eager._state.input.zero_()
    eager.cache.data.zero_()
    rows = graphs._prompt_rows(newcomers)
    padded = graphs._padding_rows(len(rows) + 5)
    padded[: len(rows)] = rows
    with torch.inference_mode():
        graphs._prefill_rows(torch.from_numpy(padded))
    torch.testing.assert_close(graphs._state.input[:3], expected[:3], atol=1e-5, rtol=1e-5)
    for newcomer in newcomers:
        count, page_size = len(newcomer.stream.prompt), eager.limits.page_size
        places = [newcomer.pages[i // page_size] * page_size + i % page_size for i in range(count)]
        torch.testing.assert_close(graphs.cache.data[:, :, places], keys[:, :, places], atol=1e-4, rtol=1e-4)


def test_out_of_memory_fails_only_the_prompt_that_causes_it(
    checkpoint_of: CheckpointOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint.open(str(checkpoint_of("base")))
    config = EngineConfig(checkpoint=str(checkpoint.folder), max_streams=4, max_text_tokens=64, max_frames_limit=64)
    prompts = PromptBuilder(checkpoint, config)
    graphs = as_graph_runner(load_runner(checkpoint, config, torch.device("cpu")))
    load_history, prefilled = graphs._state.load_history, list[np.ndarray]()
    opening = SimpleNamespace(replay=lambda rows: graphs._state.load(torch.from_numpy(rows)))

    def enter(unopened: np.ndarray, rows: np.ndarray) -> None:
        opening.replay(unopened)
        prefilled.append(rows)

    graphs._prefills = captured({512: SimpleNamespace(replay=prefilled.append)})
    graphs._openings, graphs._entries = captured({64: opening}), captured({512: SimpleNamespace(replay=enter)})
    graphs._unopened, graphs._pending = graphs._state.padding_rows(0), graphs._padding_rows(0)

    def fail_for_slot_1(newcomers: list[Newcomer]) -> None:
        if any(newcomer.slot == 1 for newcomer in newcomers):
            raise torch.OutOfMemoryError("injected")
        load_history(newcomers)

    monkeypatch.setattr(graphs._state, "load_history", fail_for_slot_1)
    newcomers = [clone(prompts, slot, graphs.limits.page_size) for slot in range(3)]
    [(failed, error)] = graphs.prefill(newcomers)
    assert failed is newcomers[1]
    assert "injected" in str(error)
    graphs._prefill_pending()
    assert [set(rows[:, 0]) for rows in prefilled] == [{0}, {2}]
    assert graphs._fresh.tolist() == [True, False, True, False]


@pytest.mark.parametrize("slots", [1, 256])
@pytest.mark.parametrize("count", [1, 59, 512, 513, 700, 1100, 3776, 15104])
def test_parts_of_a_long_prefill_fill_their_graphs(count: int, slots: int) -> None:
    rows, buckets = np.arange(count), prefill_buckets(slots)
    graphs = captured({bucket: SimpleNamespace(size=bucket) for bucket in buckets})
    replays = [(cast(Any, graph).size, part) for graph, part in graphs.fill(rows, MAX_PADDED_PREFILL)]
    np.testing.assert_array_equal(np.concatenate([part for _, part in replays]), rows)
    *filled, (size, last) = replays
    assert all(size == len(part) for size, part in filled)
    assert size == min(bucket for bucket in buckets if bucket >= len(last))
    assert size in (len(last), *(bucket for bucket in buckets if bucket <= MAX_PADDED_PREFILL))


def test_a_first_frame_among_others_equals_one_alone(checkpoint_of: CheckpointOf) -> None:
    """The talker runs for slots 0 and 2, which have made frames; slot 1 comes from its prefill."""
    checkpoint = Checkpoint.open(str(checkpoint_of("base")))
    config = EngineConfig(checkpoint=str(checkpoint.folder), max_streams=4, max_text_tokens=64, max_frames_limit=64)
    prompts = PromptBuilder(checkpoint, config)
    eager = load_runner(checkpoint, config, torch.device("cpu"))
    newcomers = [clone(prompts, slot, eager.limits.page_size) for slot in range(3)]
    assert eager.prefill([newcomers[0], newcomers[2]]) == []
    eager.launch(np.array([0, 2]))
    assert eager.prefill([newcomers[1]]) == []
    state, cache = eager._state, eager.cache.data
    saved = [tensor.clone() for tensor in (state.input, state._fields, state.seen, cache)]
    expected = eager.launch(np.arange(3)).codes
    fed, keys = state.input.clone(), cache.clone()
    for tensor, before in zip((state.input, state._fields, state.seen, cache), saved, strict=True):
        tensor.copy_(before)
    padding, graphs = state.padding_slot, as_graph_runner(eager)
    with torch.inference_mode():
        assert graphs._step(torch.tensor([0, 2, padding])) is None
        codes = graphs._predict(torch.tensor([0, 1, 2, padding]))
    np.testing.assert_array_equal(codes[:3].numpy(), expected)
    torch.testing.assert_close(state.input[:3], fed[:3], atol=1e-5, rtol=1e-5)
    own = newcomers[2].pages[-1] * eager.limits.page_size + eager.limits.page_size
    torch.testing.assert_close(cache[:, :, :own], keys[:, :, :own], atol=1e-5, rtol=1e-5)


def captured(by_rows: dict[int, Any]) -> Graphs:
    """Stand-ins for graphs, by their number of rows."""
    graphs = Graphs(lambda: None, [], lambda rows: [], 0)
    graphs.captured.update(by_rows)
    return graphs


def as_graph_runner(eager: TalkerRunner) -> GraphTalkerRunner:
    """A graph runner over the same state, without captured graphs."""
    graphs = GraphTalkerRunner.__new__(GraphTalkerRunner)
    graphs.__dict__.update(eager.__dict__)
    return graphs


def clone(prompts: PromptBuilder, slot: int, page_size: int) -> Newcomer:
    hidden = prompts._talker.hidden_size
    random = np.random.default_rng(slot)
    vector, codes = random.normal(0, 0.3, hidden).astype(np.float32), random.integers(0, 2048, (9, 16), np.int32)
    voice = Voice(vector, codes, "What it says.") if slot else Voice(vector)
    request = SynthesisRequest.of({"text": f"Hello. {slot}", "voice": "any", "seed": slot}).in_voice(voice)
    stream = prompts.stream(request, Listener(), str(slot))
    pages = -(-stream.num_positions // page_size)
    return Newcomer(stream, slot, list(range(slot * pages, (slot + 1) * pages)))


ALLOCATOR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
DRIVER = RuntimeError("CUDA error: out of memory")


class CapturedRows:
    """A graph that records what it replays."""

    def __init__(self, padding: Sequence[np.ndarray]) -> None:
        self.sizes = [len(rows) for rows in padding]


def capture_with_memory_for(most: int, checkpoint_of: CheckpointOf, error: Exception = ALLOCATOR) -> GraphTalkerRunner:
    """A runner whose graphs of more than `most` rows have no memory."""
    checkpoint = Checkpoint.open(str(checkpoint_of("base")))
    config = EngineConfig(checkpoint=str(checkpoint.folder), max_streams=300, max_text_tokens=8, max_frames_limit=8)
    graphs = as_graph_runner(load_runner(checkpoint, config, torch.device("cpu")))

    def capture(padding: Sequence[np.ndarray], run: object) -> CapturedRows:
        if sum(map(len, padding)) > most:
            raise error
        return CapturedRows(padding)

    graphs._capture, graphs._make_memory = capture, object  # type: ignore[assignment, method-assign]
    graphs.capture()
    return graphs


@pytest.mark.parametrize("error", [ALLOCATOR, DRIVER])
def test_ticks_without_memory_for_their_graph_run_in_parts(
    checkpoint_of: CheckpointOf, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    graphs = capture_with_memory_for(128, checkpoint_of, error)
    assert graphs._steps.most == graphs._codes.most == 128
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.match(r"the GPU has no memory for \d+ of \d+ CUDA graphs: ticks of many streams run in parts", warning)
    slots = np.arange(300)
    replays = graphs._steps_of(slots, tracked=False)
    assert [graph.sizes for graph, _ in replays] == [[128], [128], [48]]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.concatenate([part for _, (part,) in replays]), slots)
    # 64 frames have a graph with 64 rows of prompts; 128 have none.
    assert graphs._joints[64].captured.keys() == {64}
    assert not graphs._joints[128].captured


def test_a_model_without_memory_for_small_graphs_does_not_start(checkpoint_of: CheckpointOf) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        capture_with_memory_for(63, checkpoint_of)


def test_another_error_of_a_large_graph_is_raised(checkpoint_of: CheckpointOf) -> None:
    with pytest.raises(RuntimeError, match="illegal address"):
        capture_with_memory_for(128, checkpoint_of, RuntimeError("CUDA error: illegal address"))


def test_with_memory_for_all_graphs_there_is_no_warning(
    checkpoint_of: CheckpointOf, caplog: pytest.LogCaptureFixture
) -> None:
    graphs = capture_with_memory_for(1 << 20, checkpoint_of)
    assert graphs._steps.most == 300
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
