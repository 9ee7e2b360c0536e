import argparse
import re

import pytest

from qwen3_tts_client.bench.options import count, float_values, int_values, json_object
from qwen3_tts_client.errors import from_message


@pytest.mark.parametrize(
    ("text", "values"), [("4", [4]), ("1,8,32", [1, 8, 32]), ("1:9:4", [1, 5, 9]), ("1:8:4", [1, 5]), ("2:2:1", [2])]
)
def test_parses_a_list_or_an_inclusive_range(text: str, values: list[int]) -> None:
    assert int_values(text) == values


def test_parses_fractional_rates() -> None:
    assert float_values("0.5,2.5") == [0.5, 2.5]
    assert float_values("0.5:2:0.5") == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("text", ["0", "-1", "1,", "", "1:2", "1:2:3:4", "3:1:1", "1:5:0", "x"])
def test_rejects_invalid_loads_with_what_is_expected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{re.escape(repr(text))}: expected "):
        int_values(text)


@pytest.mark.parametrize("text", ["1,2", "1:3:1", "x"])
def test_a_count_is_one_number(text: str) -> None:
    assert count("3") == 3
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{text!r}: expected "):
        count(text)


@pytest.mark.parametrize("text", ["[]", "3", "{"])
def test_extra_inputs_must_be_a_json_object(text: str) -> None:
    assert json_object('{"task_type": "CustomVoice"}') == {"task_type": "CustomVoice"}
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
        json_object(text)


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("INVALID_ARG: text: '': must not be empty", "invalid"),
        ("UNAVAILABLE: 64 streams run", "unavailable"),
        ("[request id: 3] CANCELLED: by the client", "cancelled"),
        ("INTERNAL: code2wav", "error"),
        ("INTERNAL: code2wav: INVALID_ARG: codes: 2048 given", "error"),
        ("the word UNAVAILABLE alone is no code", "error"),
    ],
)
def test_outcome_is_the_code_that_begins_an_error_message(message: str, outcome: str) -> None:
    error = from_message(message)
    assert (error.outcome, str(error)) == (outcome, message)


@pytest.mark.parametrize(
    "state", ["'qwen3_tts' has no available versions", "'qwen3_tts' version 1 is not at ready state"]
)
def test_a_server_that_ends_is_unavailable(state: str) -> None:
    """Triton answers so while it unloads its models; another server can take the request."""
    error = from_message(f"Request for unknown model: {state}")
    assert (error.outcome, str(error)) == ("unavailable", f"UNAVAILABLE: Request for unknown model: {state}")
