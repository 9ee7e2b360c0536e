"""One version: that of the client's package, in the image labels, the tags, the chart and the changelog."""

import re

import pytest

from qwen3_tts_client import __version__
from scripts.version import PLACES, ROOT, semantic, written


@pytest.mark.parametrize("path", PLACES)
def test_files_name_the_version_of_the_package(path: str) -> None:
    assert (ROOT / path).read_text() == written(path), "run python -m scripts.version"


@pytest.mark.parametrize("version", ["9.8.7", "9.8.7rc6"])
@pytest.mark.parametrize("path", PLACES)
def test_every_place_gets_another_version(path: str, version: str) -> None:
    text = written(path, version)
    assert __version__ not in text
    assert semantic(__version__) not in text
    assert version in text


def test_semantic_version_has_a_hyphen_before_the_candidate() -> None:
    assert [semantic(version) for version in ("1.0.0rc1", "1.0.0")] == ["1.0.0-rc1", "1.0.0"]


def test_newest_entry_of_the_changelog_is_this_version() -> None:
    entries = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(entry for entry in entries if entry != "Unreleased") == __version__
