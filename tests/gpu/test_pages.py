"""CUDA graphs with pages added during generation, and after generated codes are prefilled again."""

import numpy as np
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.runner import TalkerRunner
from tests.fakes.scripted import Listener
from tests.gpu.conftest import DEVICE
from tests.gpu.test_runner import PAGE, config_of, forbid_device_sync, graphs, newcomer, prefill

__all__ = ["graphs"]
FRAMES, SLOT = 100, np.array([1])


def speak(runner: TalkerRunner, frames: int) -> np.ndarray:
    return np.concatenate([runner.collect(runner.launch(SLOT)).codes for _ in range(frames)])


def test_pages_added_one_by_one_give_the_same_codes(graphs: TalkerRunner, checkpoint: Checkpoint) -> None:
    whole = newcomer(checkpoint, 1, temperature=0.0, max_frames=FRAMES)
    graphs.prefill([whole])
    expected = speak(graphs, FRAMES)
    rows, held = len(whole.stream.prompt), -(-len(whole.stream.prompt) // PAGE)
    pages = whole.pages[::-1]
    made = []
    with forbid_device_sync():
        graphs.prefill([Newcomer(whole.stream, 1, pages[:held])])
        for position in range(rows - 1, rows + FRAMES - 1):
            if position == held * PAGE:
                graphs.grow(np.array([[1, held, pages[held]]]))
                held += 1
            made.append(speak(graphs, 1))
    np.testing.assert_array_equal(np.concatenate(made), expected)


def test_codes_are_the_same_with_a_cached_prefix(checkpoint: Checkpoint) -> None:
    """Bit by bit where a row's arithmetic does not depend on the number of rows."""
    config = config_of(checkpoint, page_size=8, batch_invariant=True)
    runner, prompts = load_runner(checkpoint, config, DEVICE), PromptBuilder(checkpoint, config)
    request = {"speaker": "ryan", "temperature": 0.0, "max_frames": FRAMES}
    first, second = (
        prompts.stream(SynthesisRequest.of({"text": text, **request}), Listener(), text)
        for text in ("Something else.", "Hello there.")
    )
    own = list(range(40, 60))
    assert runner.prefill([Newcomer(second, 1, own)]) == []
    expected = speak(runner, FRAMES)
    assert runner.prefill([Newcomer(first, 0, list(range(20)))]) == []
    runner.collect(runner.launch(np.array([0])))
    count = len(second.prompt.prefix_hashes)
    assert second.prompt.prefix_hashes == first.prompt.prefix_hashes
    assert count
    cached = Newcomer(second, 1, [*range(count), *range(60, 80)], num_cached=count * 8)
    with forbid_device_sync():
        assert runner.prefill([cached]) == []
        found = speak(runner, FRAMES)
    np.testing.assert_array_equal(found, expected)


def test_prefilled_codes_write_the_same_cache_as_generated_ones(graphs: TalkerRunner, checkpoint: Checkpoint) -> None:
    """Equal up to rounding, as prefill and decode use different kernels."""
    one = newcomer(checkpoint, 1, temperature=0.0, max_frames=FRAMES)
    graphs.prefill([one])
    codes = speak(graphs, 60)
    # The position of the last frame has not been written yet.
    positions = torch.arange(len(one.stream.prompt) + 59)
    rows = torch.tensor(one.pages)[positions // PAGE] * PAGE + positions % PAGE
    expected = graphs.cache.data[:, :, rows.to(graphs._device)].float()
    with forbid_device_sync():
        prefill(graphs, [Newcomer(one.stream, 1, one.pages, codes.astype(np.int16))])
    found = graphs.cache.data[:, :, rows.to(graphs._device)].float()
    assert float((found - expected).norm() / expected.norm()) < 0.02
    assert graphs._state.position[1] == len(one.stream.prompt) + 59
    assert graphs._state.frame[1] == 60
    assert bool(graphs._state.seen[1, torch.from_numpy(codes[:, 0]).to(graphs._device).clamp(max=2047)].all())
