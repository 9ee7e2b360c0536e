"""Quoted values in request errors, and sampling parameters of a request."""

from typing import Any

import pytest

from qwen3_tts_engine.checkpoint.configs import GenerationConfig
from qwen3_tts_engine.request import MAX_QUOTED, InvalidRequest, Sampling, SynthesisRequest
from tests.fakes.scripted import Listener, make_stream


class Huge(str):
    """A text that must not be quoted in full."""

    def __repr__(self) -> str:
        assert len(self) <= MAX_QUOTED
        return super().__repr__()

    def __getitem__(self, key: Any) -> "Huge":
        return Huge(super().__getitem__(key))


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        (Huge("x" * 1000), f"'{'x' * MAX_QUOTED}'… (1000 characters)"),
        (b"7" * 1000, f"b'{'7' * MAX_QUOTED}'… (1000 bytes)"),
        ("short", "'short'"),
        (0.1, "0.1"),
    ],
)
def test_errors_quote_long_values_in_part(value: object, quoted: str) -> None:
    assert str(InvalidRequest("text", value, "wrong")) == f"text: {quoted}: wrong"


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 9e-6])
def test_a_temperature_below_the_threshold_is_greedy(temperature: float) -> None:
    requested = Sampling.from_defaults(GenerationConfig(), SynthesisRequest(text="x", temperature=temperature))
    assert (requested.temperature, requested.predictor_temperature) == (0, 0)
    by_default = GenerationConfig(temperature=temperature, subtalker_temperature=temperature)
    sampling = Sampling.from_defaults(by_default, SynthesisRequest(text="x"))
    assert (sampling.temperature, sampling.predictor_temperature) == (0, 0)
    low = Sampling.from_defaults(GenerationConfig(), SynthesisRequest(text="x", temperature=1e-5))
    assert (low.temperature, low.predictor_temperature) == (1e-5, 0.9)


def test_a_top_k_of_minus_one_keeps_the_whole_vocabulary() -> None:
    sampling = Sampling.from_defaults(GenerationConfig(top_k=50), SynthesisRequest.of({"text": "x", "top_k": -1}))
    assert sampling.top_k == 0


@pytest.mark.parametrize(("seed", "part", "expected"), [(5, 0, 5), (5, 2, 7), ((1 << 63) - 1, 1, 0)])
def test_the_seed_of_a_part_has_63_bits(seed: int, part: int, expected: int) -> None:
    stream = make_stream("0", Listener(), seed)
    stream.part = part
    assert stream.seed == expected


def test_a_seed_of_minus_one_is_random() -> None:
    request = SynthesisRequest.of({"text": "x", "seed": -1})
    seeds = {Sampling.from_defaults(GenerationConfig(), request).seed for _ in range(3)}
    assert len(seeds) == 3
    assert min(seeds) >= 0


@pytest.mark.parametrize("field", ["top_k", "seed"])
def test_other_negative_numbers_are_refused(field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{field}: -2: Input should be greater than or equal to -1"):
        SynthesisRequest.of({"text": "x", field: -2})
