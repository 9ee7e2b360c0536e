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
SOURCE_FOLDERS = ("model_repository", "export", "client", "scripts", "docker", "tests")
SOURCE_SUFFIXES = {".py", ".pbtxt", ".sh", ".cu", ".cuh", ".h", ".cpp"}
SOURCES = sorted(
    path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SOURCE_SUFFIXES
)


@pytest.mark.parametrize(("page", "least"), [("architecture.md", 30), ("model.md", 15)])
def test_every_path_of_the_page_exists(page: str, least: int) -> None:
    paths = re.findall(r"`([\w./-]+(?:\.py|\.pbtxt|/))`", (ROOT / "docs" / page).read_text())
    assert len(paths) > least
    assert not [path for path in paths if not any((base / path).exists() for base in BASES)]


def test_every_room_of_the_engine_is_on_the_walk() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = [folder.parent.name for folder in (TALKER / "1" / "qwen3_tts_engine").glob("*/__init__.py")]
    assert not [room for room in rooms if f"`{room}/" not in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_every_section_that_the_source_names_exists() -> None:
    """References have the form `docs/<page>.md, <Heading>`; the heading goes up to the next punctuation mark."""
    named = [
        (path, page, heading)
        for path in SOURCES
        for page, heading in re.findall(r"docs/([\w/-]+\.md), ([A-Z][\w -]*\w)", path.read_text())
    ]
    assert len(named) > 30
    missing = [
        f"{path.relative_to(ROOT)}: docs/{page}, {heading}"
        for path, page, heading in named
        if heading not in headings(page)
    ]
    assert not missing


def headings(page: str) -> set[str]:
    path = ROOT / "docs" / page
    return set(re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)) if path.is_file() else set()


def test_the_settings_are_documented() -> None:
    assert configuration_page.PAGE.read_text() == configuration_page.page(), "run python -m scripts.configuration_page"
    assert not re.findall(r"\|\s*\|$", configuration_page.page(), re.MULTILINE), "a setting has no description"
