"""The command line as a whole: version, completion, exit codes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from qwen3_tts_client import __version__
from qwen3_tts_client.__main__ import main
from qwen3_tts_client.commands import COMMANDS
from qwen3_tts_client.errors import EXIT_CODES, ExitCode

PAGE = Path(__file__).parents[3] / "docs" / "client.md"


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*arguments])
    return capsys.readouterr().out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "--version") == f"qwen3-tts {__version__}\n"


def test_help_and_page_list_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(output(capsys, "--help").split())
    documented = dict(re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    assert documented == {str(code.value): meaning for code, meaning in EXIT_CODES.items()}
    assert set(EXIT_CODES) == set(ExitCode)
    for code, meaning in documented.items():
        assert f"{code} {meaning}" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_page_names_every_command(command: str) -> None:
    assert f"`{command}" in PAGE.read_text()


def test_completion_knows_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == ExitCode.OK
    script = capsys.readouterr().out
    assert "--x-vector-only" in script
    # As bash completes `qwen3-tts ca`.
    complete = 'COMP_WORDS=(qwen3-tts ca); COMP_CWORD=1; _shtab_qwen3_tts; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{complete}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["capacity"]


def test_completion_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == ExitCode.USAGE
    assert "pip install 'qwen3-tts-triton[completion]'" in capsys.readouterr().err
