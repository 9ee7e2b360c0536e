"""Layout of the codec state that a stream keeps between chunks (docs/model.md, Codec state)."""

from pathlib import Path

import pytest
import torch

from export.modules.codec import CodecStep
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig
from qwen3_tts_engine.codec.contract import max_history, state_layout, state_size
from scripts.synthetic.configs import CODEC_DECODER


@pytest.fixture(scope="module")
def released() -> CodecDecoderConfig:
    return CodecDecoderConfig.model_validate(CODEC_DECODER)


def test_state_size_of_the_released_codec(released: CodecDecoderConfig) -> None:
    assert state_size(released) == 1_298_496
    assert max_history(released) == 71


def test_piece_sizes_of_the_released_codec(released: CodecDecoderConfig) -> None:
    sizes = {piece.name: piece.size for piece in state_layout(released)}
    window = {name: sizes.pop(name) for name in ("keys", "values")}
    transposed = [sizes.pop(f"decoder.{block}.transposed") for block in (1, 2, 3, 4)]
    assert sum(window.values()) == 1_163_264
    assert transposed == [1536, 768, 384, 192]
    assert sum(sizes.values()) == 132_352
    assert sizes["pre_conv"] == 2 * 512
    assert sizes["upsample.0"] == sizes["upsample.1"] == sizes["decoder.0"] == 6 * 1024
    assert [sizes[f"decoder.1.residual.{i}"] for i in range(3)] == [768 * 6, 768 * 18, 768 * 54]
    assert sizes["decoder.final"] == 6 * 96


def test_piece_names_are_unique(released: CodecDecoderConfig) -> None:
    names = [piece.name for piece in state_layout(released)]
    assert len(set(names)) == len(names)


# Positions that one frame adds, for pieces that keep more positions than that. Time is the second axis of each.
POSITIONS_PER_FRAME = {"keys": 1, "values": 1, "pre_conv": 1, "upsample.0": 2, "upsample.1": 4, "decoder.0": 4}
POSITIONS_PER_FRAME["decoder.1.residual.2"] = 32


def test_a_frame_shifts_each_piece_by_its_positions(tiny_checkpoint: Path) -> None:
    step = CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint)))
    state = torch.arange(2.0 * step.state_size).reshape(2, -1)
    _, state_out = step(torch.zeros(2, 1, 16, dtype=torch.int32), state, torch.zeros(2, 1, dtype=torch.int32))
    offset, moved = 0, set()
    for piece in state_layout(step.config):
        if positions := POSITIONS_PER_FRAME.get(piece.name):
            before, after = (x[:, offset : offset + piece.size].unflatten(1, piece.shape) for x in (state, state_out))
            torch.testing.assert_close(after[:, :, :-positions], before[:, :, positions:])
            moved.add(piece.name)
        offset += piece.size
    assert moved == POSITIONS_PER_FRAME.keys()
    assert offset == step.state_size == state_out.shape[1]
