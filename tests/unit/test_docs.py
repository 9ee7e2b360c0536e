"""Files that the documents name are there."""

import re
from pathlib import Path

import pytest

from scripts import configuration_page

ROOT = Path(__file__).parents[2]
TALKER = ROOT / "model_repository" / "qwen3_tts"
# Where the paths of docs/architecture.md begin.
BASES = (ROOT, TALKER, TALKER / "1" / "qwen3_tts_engine", TALKER / "1" / "triton_adapter")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_every_path_of_the_walk_exists() -> None:
    paths = re.findall(r"`([\w./-]+(?:\.py|\.pbtxt|/))`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(paths) > 30
    assert not [path for path in paths if not any((base / path).exists() for base in BASES)]


def test_every_room_of_the_engine_is_on_the_walk() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = [folder.parent.name for folder in (TALKER / "1" / "qwen3_tts_engine").glob("*/__init__.py")]
    assert not [room for room in rooms if f"`{room}/" not in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_settings_are_documented() -> None:
    assert configuration_page.PAGE.read_text() == configuration_page.page(), "run python -m scripts.configuration_page"
    assert not re.findall(r"\|\s*\|$", configuration_page.page(), re.MULTILINE), "a setting has no description"
