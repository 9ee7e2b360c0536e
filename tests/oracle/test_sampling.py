"""Codebook 0 is sampled from the distribution of the reference's logits processors."""

from typing import cast

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from qwen3_tts_engine.talker.sampling import DrawParameters, draw, mask_first, uniforms

VOCABULARY, CODES, EOS = 3072, 2048, 2150
GRID = 4000


def reference_probabilities(
    logits: torch.Tensor, history: list[int], penalty: float, temperature: float, top_k: int, top_p: float
) -> torch.Tensor:
    suppressed = [i for i in range(CODES, VOCABULARY) if i != EOS]
    processors = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(penalty),
            MinNewTokensLengthLogitsProcessor(0, 2, EOS, device="cpu"),
            SuppressTokensLogitsProcessor(suppressed, device="cpu"),
            TemperatureLogitsWarper(temperature),
        ]
    )
    if top_k:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    ids = cast(torch.LongTensor, torch.tensor([history], dtype=torch.long))
    scores = cast(torch.FloatTensor, logits[None].clone())
    return processors(ids, scores)[0].softmax(-1)


@pytest.mark.parametrize("penalty", [1.0, 1.05, 1.7])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.9, 50, 1.0), (1.3, 5, 0.8), (0.7, 0, 0.9), (1.0, 1, 1.0)]
)
@pytest.mark.parametrize("length", [0, 1, 2, 40])
def test_codes_follow_the_reference_distribution(
    penalty: float, temperature: float, top_k: int, top_p: float, length: int
) -> None:
    generator = torch.Generator().manual_seed(length)
    logits = torch.randn(VOCABULARY, generator=generator) * 4
    logits[EOS] = 14.0
    history = torch.randint(0, CODES, (length,), generator=generator).tolist()
    expected = reference_probabilities(logits, history, penalty, temperature, top_k, top_p)

    seen = torch.zeros(1, CODES, dtype=torch.bool)
    seen[0, history] = True
    masked = mask_first(logits[None], seen, torch.tensor([penalty]), torch.tensor([length]), EOS)
    grid = (torch.arange(GRID) + 0.5) / GRID
    rows = DrawParameters(*(torch.tensor([x]).expand(GRID) for x in (temperature, top_k, top_p)))
    drawn = draw(masked.expand(GRID, -1), rows, grid)
    found = torch.bincount(drawn, minlength=VOCABULARY) / GRID
    torch.testing.assert_close(found, expected, atol=2 / GRID, rtol=0)


def test_each_row_uses_its_own_sampling_parameters() -> None:
    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    parameters = DrawParameters(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 1, 0]), torch.tensor([1.0, 1.0, 1e-6]))
    uniform = torch.full((3,), 0.999)
    assert draw(logits, parameters, uniform).tolist() == logits.argmax(-1).tolist()


def test_uniforms_depend_only_on_seed_frame_and_codebook() -> None:
    seed, frame = torch.tensor([5, 5, 6, 2**63 - 1]), torch.tensor([0, 1, 0, 8191])
    together = uniforms(seed, frame, 16)
    alone = torch.cat([uniforms(seed[i : i + 1], frame[i : i + 1], 16) for i in range(4)])
    assert torch.equal(together, alone)
    assert len(set(together.flatten().tolist())) == 64


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    frame = torch.arange(100_000)
    x = uniforms(torch.zeros_like(frame), frame, 16)[:, 3]
    assert float(x.min()) >= 0
    assert float(x.max()) < 1
    counts = torch.histc(x, 100, 0, 1)
    chi_squared = float(((counts - 1000) ** 2 / 1000).sum())
    assert 60 < chi_squared < 150
    assert abs(float(torch.corrcoef(torch.stack([x[:-1], x[1:]]))[0, 1])) < 0.01
