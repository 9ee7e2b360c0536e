"""docs/gateway.md agrees with the code."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from qwen3_tts_gateway.app import make_app
from qwen3_tts_gateway.audio.formats import FORMATS
from qwen3_tts_gateway.config import VOICE_ALIASES, Settings
from qwen3_tts_gateway.metrics import Metrics
from qwen3_tts_gateway.schema import SpeechBody
from tests.fakes.gateway import RunningGateway

PAGE = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text()


def first_cells(heading: str) -> set[str]:
    """Code in the first cells of the tables between a heading and the next."""
    [section] = re.findall(rf"^#+ {heading}\n(.*?)(?=^#+ |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    cells = re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_settings() -> None:
    assert first_cells("Settings") == set(Settings.model_fields)


def test_fields_of_a_speech_request() -> None:
    assert first_cells("Speech") == set(SpeechBody.model_fields)


def test_formats() -> None:
    assert first_cells("Formats") - {"response_format"} == set(FORMATS)
    for name, audio_format in FORMATS.items():
        assert f"| `{name}` | `{audio_format.media_type}` |" in PAGE


def test_voice_aliases() -> None:
    assert set(re.findall(r"`(\w+)` \| (\w+)", PAGE)) >= set(VOICE_ALIASES.items())


def test_metrics() -> None:
    families = {line.split()[2] for line in Metrics().page().decode().splitlines() if line.startswith("# TYPE")}
    created = {name for name in families if name.endswith("_created")}
    assert first_cells("Metrics and log") >= families - created


def test_endpoints(gateway: RunningGateway) -> None:
    routes: list[Any] = make_app(gateway.services).routes
    paths = {re.sub(r"\{[^}]*\}", "NAME", route.path) for route in routes}
    assert {entry.split()[1] for entry in first_cells("Endpoints")} == paths


@pytest.mark.parametrize("text", re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
def test_examples_of_settings_are_valid(text: str) -> None:
    Settings(**tomllib.loads(text))
