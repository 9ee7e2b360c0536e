"""How a caller is told what is wrong, and what is drawn as it asked."""

from typing import Any

import pytest

from qwen3_tts_engine.checkpoint.configs import GenerationConfig
from qwen3_tts_engine.request import MAX_QUOTED, InvalidRequest, Sampling, SynthesisRequest


class Huge(str):
    """A text that may not be quoted whole."""

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
def test_a_wrong_value_is_quoted_in_part(value: object, quoted: str) -> None:
    assert str(InvalidRequest("text", value, "wrong")) == f"text: {quoted}: wrong"


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 9e-6])
def test_a_temperature_that_divides_too_much_is_greedy(temperature: float) -> None:
    asked = Sampling.from_defaults(GenerationConfig(), SynthesisRequest(text="x", temperature=temperature))
    assert (asked.temperature, asked.predictor_temperature) == (0, 0)
    by_default = GenerationConfig(temperature=temperature, subtalker_temperature=temperature)
    sampling = Sampling.from_defaults(by_default, SynthesisRequest(text="x"))
    assert (sampling.temperature, sampling.predictor_temperature) == (0, 0)
    low = Sampling.from_defaults(GenerationConfig(), SynthesisRequest(text="x", temperature=1e-5))
    assert (low.temperature, low.predictor_temperature) == (1e-5, 0.9)
