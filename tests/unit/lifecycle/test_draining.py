"""What a model reads from its drain file."""

from pathlib import Path

import pytest

from qwen3_tts_engine.lifecycle.draining import DrainFile


@pytest.mark.parametrize(
    ("content", "is_present", "refuses", "ends"),
    [
        (None, False, False, False),
        ("", True, False, False),
        ("unready\n", True, False, False),
        ("refusing\n", True, True, False),
        ("ending\n", True, True, True),
    ],
)
def test_reads_the_step_of_a_drain(
    content: str | None, is_present: bool, refuses: bool, ends: bool, tmp_path: Path
) -> None:
    file = tmp_path / "drain"
    if content is not None:
        file.write_text(content)
    drain = DrainFile(str(file))
    assert (drain.is_present(), drain.refuses(), drain.ends()) == (is_present, refuses, ends)


def test_never_drains_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drain = DrainFile("")
    assert not drain.is_present()
    assert not drain.refuses()
    assert not drain.ends()
