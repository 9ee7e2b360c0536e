"""Outcomes and samples that the soak test accepts."""

import numpy as np
import pytest

from qwen3_tts_client.protocol import SpeechRequest
from scripts.soak.__main__ import Tally, is_right
from scripts.soak.callers import HUNG_UP, KINDS, MIXED, Outcome
from scripts.soak.faults import Fault
from scripts.soak.utterances import TOLERANCE, Utterance, requests

FAULT = Fault("codec error", 10.0, 12.0)


@pytest.mark.parametrize(
    ("outcome", "right"),
    [
        (Outcome("listen", "ok", 0, 1), True),
        (Outcome("listen", "error", 0, 9), False),
        (Outcome("listen", "error", 0, 10), True),
        (Outcome("listen", "error", 12, 13), True),
        (Outcome("listen", "error", 13, 14), False),
        (Outcome("err", "invalid", 0, 1), True),
        (Outcome("err", "ok", 0, 11), False),
        (Outcome("hang up", HUNG_UP, 0, 1), True),
        (Outcome("listen", "timeout", 0, 11), False),
        (Outcome("listen", MIXED, 0, 11), False),
    ],
)
def test_accepts_failures_only_near_a_fault(outcome: Outcome, right: bool) -> None:
    assert is_right(outcome, [FAULT]) == right


def test_each_failure_counts_once() -> None:
    tally = Tally([Outcome("listen", result, 0, 1) for result in ("ok", "timeout", MIXED, "error", "invalid")])
    assert [outcome.result for outcome in tally.wrong([FAULT])] == ["error", "invalid"]


def test_recognises_an_utterance_by_its_samples() -> None:
    samples = 10 * np.arange(1000, dtype=np.int16)
    utterance = Utterance("qwen3_tts", SpeechRequest("Hello."), samples)
    assert utterance.is_beginning_of(samples)
    assert utterance.is_beginning_of(samples[:10] + np.int16(TOLERANCE))
    assert utterance.is_beginning_of(samples[:0])
    assert not utterance.is_beginning_of(samples[:10] + np.int16(TOLERANCE + 1))
    assert not utterance.is_beginning_of(samples[1:])
    assert not utterance.is_beginning_of(10 * np.arange(1001, dtype=np.int16))


def test_tolerates_half_precision_on_a_gpu() -> None:
    samples = np.random.default_rng(0).integers(-9000, 9000, 1000, np.int16)
    utterance = Utterance("qwen3_tts", SpeechRequest("Hello."), samples, on_gpu=True)
    assert utterance.is_beginning_of((samples * 1.01).astype(np.int16))
    assert not utterance.is_beginning_of((samples * 1.03).astype(np.int16))
    assert not utterance.is_beginning_of(np.roll(samples, 1))


def test_requests_cover_every_model_and_use_every_seed_once() -> None:
    made = list(requests())
    assert len({model for model, _ in made}) == 3
    assert len({request.seed for _, request in made}) == len(made)


def test_every_kind_of_caller_has_a_positive_weight() -> None:
    assert all(kind.weight > 0 for kind in KINDS.values())
