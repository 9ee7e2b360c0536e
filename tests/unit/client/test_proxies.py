"""Hosts that are reached without a proxy."""

import os

import pytest

from qwen3_tts_client.proxies import LOCAL, bypass_for_local_addresses


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (None, None, [*LOCAL]),
        ("example.org, 10.0.0.1", None, ["example.org", " 10.0.0.1", *LOCAL]),
        (None, "example.org", ["example.org", *LOCAL]),
        ("a", "b", ["a", *LOCAL]),
        ("*", None, ["*"]),
    ],
)
def test_local_addresses_are_added(
    lower: str | None, upper: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("no_proxy", lower), ("NO_PROXY", upper)):
        monkeypatch.setenv(name, value or "")
    bypass_for_local_addresses()
    assert os.environ["no_proxy"].split(",") == os.environ["NO_PROXY"].split(",") == expected
