"""The report's page: failures come first, and it can be read on a phone and in the dark."""

from typing import Any

import pytest

from qwen3_tts_client.analysis import plots, report
from qwen3_tts_client.records.record import Run


def row(value: float, **outcomes: int) -> dict[str, Any]:
    quantiles = {"p50": 10.0 * value, "p95": 20.0 * value}
    latency = {"ttfa_ms": quantiles, "audible_ttfa_ms": None}
    return {"mode": "closed", "value": value, "requests": sum(outcomes.values()), "outcomes": outcomes, **latency}


def test_failures_are_named_by_load() -> None:
    text = report._failures([row(1, ok=9), row(8, ok=5, timeout=2, unavailable=3)])
    assert 'class="bad"' in text
    assert "<td>c=8</td><td>timeout</td><td>2 of 10</td>" in text
    assert "<td>c=8</td><td>unavailable</td><td>3 of 10</td>" in text
    assert "c=1" not in text


def test_that_nothing_failed_is_said() -> None:
    assert report._failures([row(1, ok=9), row(8, ok=5)]) == "<p>None of 14 requests failed.</p>"


def test_a_page_fits_a_phone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_plots", lambda *_: [])
    page = report.page(Run({}), [], 0)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("<table") == page.count('<div class="scroll"><table')


def test_plots_have_the_colours_of_the_page() -> None:
    svg = plots.first_audio([row(1, ok=9), row(8, ok=5)])
    assert "currentColor" in svg
    assert plots.INK not in svg
    assert "audible TTFA p95" in svg
