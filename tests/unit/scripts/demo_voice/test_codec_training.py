"""Quantizers, phases of the training, and continuing from a snapshot."""

from collections.abc import Callable

import pytest
import torch

from scripts.demo_voice.codec.quantizer import Quantizer
from scripts.demo_voice.codec.runs import phase_at
from scripts.demo_voice.codec.training import CodecTraining
from scripts.demo_voice.sizes import ACTIVE, CODES, FRAME, sizes


@pytest.fixture
def quantizer() -> Quantizer:
    torch.manual_seed(0)
    made = Quantizer(sizes("mini").decoder, ACTIVE)
    made.begin(torch.randn(2000, 64))
    return made


def test_decodes_what_it_quantized(quantizer: Quantizer) -> None:
    z = torch.randn(50, 64)
    quantized = quantizer(z, torch.full((50,), ACTIVE - 1), learn=False)
    assert quantized.codes.shape == (50, ACTIVE)
    torch.testing.assert_close(quantizer.encode(z), quantized.codes)
    torch.testing.assert_close(quantizer.decode(quantized.codes), quantized.vectors)


def test_silent_codebooks_do_not_sound(quantizer: Quantizer) -> None:
    z = torch.randn(10, 64)
    quantized = quantizer(z, torch.full((10,), 2), learn=False)
    torch.testing.assert_close(quantizer.decode(quantized.codes, 3), quantized.vectors)


def test_sound_teaches_the_phones_nothing(quantizer: Quantizer) -> None:
    quantizer(torch.randn(10, 64), torch.full((10,), ACTIVE - 1), learn=False).vectors.sum().backward()
    assert quantizer.rvq_first.input_proj.weight.grad is None
    assert quantizer.rvq_rest.input_proj.weight.grad is not None


def test_unused_entries_begin_again(quantizer: Quantizer) -> None:
    codebook = quantizer.rvq_first.codebooks[0]
    codebook.cluster_usage[7] = 0.0
    x = torch.randn(CODES, codebook.entries.shape[1])
    codebook.learn(x, torch.zeros(CODES, dtype=torch.long))
    assert (torch.cdist(codebook.entries[7:8], x).min()) < 1e-3


def test_phases_follow_the_time() -> None:
    assert [phase_at(t, 100.0) for t in (0, 15, 50, 100, 500)] == [
        "unquantized",
        "quantized",
        "adversarial",
        "frozen",
        "frozen",
    ]


def test_learns_and_freezes(codec_training: Callable[[], CodecTraining]) -> None:
    training = codec_training()
    positions = torch.tensor([0, 4 * FRAME])
    for phase, moving in (("unquantized", True), ("adversarial", True), ("frozen", False)):
        training.enter(phase)
        training.set_rates(1.0, 1.0)
        before = training.model.encoder.downsample.conv.weight.clone()
        metrics = training.take(positions)
        assert all(torch.isfinite(value) for value in metrics.values())
        # The learning rate is still 0 in no step, so that a parameter with a gradient moves.
        assert torch.equal(before, training.model.encoder.downsample.conv.weight) != moving
    assert "entries" in training.check(*training._buffer.crops(positions))


def test_continues_from_a_snapshot(codec_training: Callable[[], CodecTraining]) -> None:
    first, second = codec_training(), codec_training()
    positions = torch.tensor([0, 4 * FRAME])
    first.set_rates(1.0, 1.0)
    first.take(positions)
    second.load(first.state(3.0))
    for training in (first, second):
        training.set_rates(1.0, 1.0)
        training.take(positions)
    assert first.step == second.step == 2
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
