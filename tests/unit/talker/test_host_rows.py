import numpy as np
import torch

from qwen3_tts_engine.talker import host_rows, sampling


def test_draws_with_the_numbers_of_pytorch() -> None:
    generator = np.random.default_rng(0)
    seed = np.concatenate([generator.integers(-(2**63), 2**63, 200), [0, 1, -1, 2**63 - 1, -(2**63)]])
    frame = np.concatenate([generator.integers(0, 8192, 200), [0, 8191, 1, 0, 8191]])
    expected = sampling.uniforms(torch.from_numpy(seed), torch.from_numpy(frame), 16)
    assert np.array_equal(host_rows.uniforms(seed, frame, 16), expected)
