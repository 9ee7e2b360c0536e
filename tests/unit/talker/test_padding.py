"""Rows that pad a batch to a graph's size do not affect streams, in any number of ticks."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.ops.torch_ops import TorchRows
from qwen3_tts_engine.talker.runner import TalkerRunner
from tests.fakes.scripted import Listener

FRAMES = 128


@pytest.fixture
def runner(tiny_checkpoint: Path) -> TalkerRunner:
    """A runner with a stream in slot 0, directly after its prompt."""
    sizes = {"max_streams": 3, "max_text_tokens": 16, "max_frames_limit": FRAMES, "kernels": "off"}
    config = EngineConfig.model_validate({"checkpoint": str(tiny_checkpoint), **sizes})
    checkpoint = Checkpoint.open(config.checkpoint)
    runner = load_runner(checkpoint, config, torch.device("cpu"))
    request = SynthesisRequest.of({"text": "Hello.", "speaker": "ryan", "seed": 1, "max_frames": FRAMES})
    stream = PromptBuilder(checkpoint, config).stream(request, Listener(), "0")
    runner.prefill([Newcomer(stream, 0, [*range(-(-stream.num_positions // config.page_size))])])
    with torch.inference_mode():
        runner._predict(torch.tensor([0]))
    return runner


@torch.inference_mode()
def test_padding_rows_do_not_affect_streams(runner: TalkerRunner) -> None:
    """Runs more ticks than a slot has positions."""
    alone, padded = runner, deepcopy(runner)
    padding = runner._state.padding_slot
    slots = torch.tensor([0, padding, padding])
    for _ in range(FRAMES - 1):
        assert torch.equal(padded._frame(slots)[0], alone._frame(slots[:1])[0])
    for _ in range(runner.limits.max_positions):
        padded._frame(slots[1:])
    assert (padded._state.position[padding], padded._state.frame[padding]) == (0, 0)
    assert padded._state.position[0] == alone._state.position[0]
    pages = slice(runner.limits.num_pages * runner.limits.page_size)
    torch.testing.assert_close(padded.cache.data[:, :, pages], alone.cache.data[:, :, pages], rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_the_kernel_does_not_advance_the_padding_slot(runner: TalkerRunner) -> None:
    """Runs in Triton's interpreter; tests/gpu runs the compiled kernel."""
    pytest.importorskip("triton", reason="Triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs the compiled kernel")
    from qwen3_tts_engine.talker.kernels.rowwise import advance_kernel

    talker, expected = runner._talker, runner._state
    state = deepcopy(expected)
    slots = torch.tensor([state.padding_slot, 0, state.padding_slot, 2])
    rows = TorchRows(expected, slots)
    rows.codes[:] = torch.arange(16) + 7 * torch.arange(4)[:, None]
    rows.advance(talker.text_table, talker.code_table, 5)
    tables = (state.code_offsets, talker.code_table, talker.text_table)
    fields = (state.trailing, state.num_trailing, state.frame, state.position, state.input)
    sizes = (state.frame.stride(0), state.trailing.shape[1], state.padding_slot)
    advance_kernel[(4,)](
        slots, rows.codes, *tables, *fields, 5, *sizes, CODEBOOKS=16, WIDTH=state.input.shape[1], PDL=False
    )
    assert state.frame.tolist() == expected.frame.tolist() == [2, 0, 1, 0]
    assert torch.equal(state.position, expected.position)
    torch.testing.assert_close(state.input, expected.input)
