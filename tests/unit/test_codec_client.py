"""What the codec client does with codes and waveforms that are none."""

import numpy as np
import torch

from qwen3_tts_engine.chunker import Chunks
from qwen3_tts_engine.codec import CodecStates, invalid_codes, to_pcm

FRAMES = 2


def chunks_of(*rows: int) -> Chunks:
    """One chunk a row, all its codes the given one."""
    count = len(rows)
    codes = np.repeat(np.array(rows, np.int32), FRAMES * 16).reshape(count, FRAMES, 16)
    zeros = np.zeros(count, np.int32)
    return Chunks([], np.arange(count), codes, zeros, np.full(count, FRAMES), zeros.astype(float))


def test_a_row_with_a_code_out_of_range_fails_alone() -> None:
    chunks = chunks_of(0, 2048, 2047, -1)
    assert invalid_codes(chunks).keys() == {1, 3}
    assert "0..2047" in str(invalid_codes(chunks)[1])
    codes, _, _ = CodecStates(4, 8, 71, torch.float32, torch.device("cpu")).inputs(chunks)
    assert codes.min() == 0
    assert codes.max() == 2047


def test_a_waveform_that_overflowed_fails_alone() -> None:
    waveform = torch.tensor([[0.5, 2.0], [0.0, torch.nan], [torch.inf, 0.0], [-2.0, -0.25]])
    pcm, failed = to_pcm(waveform)
    assert failed.keys() == {1, 2}
    np.testing.assert_array_equal(pcm[[0, 3]], [[16384, 32767], [-32767, -8192]])
