"""Help texts of the scripts."""

import importlib
from pathlib import Path

import pytest
import typer
from rich.emoji import Emoji
from typer.testing import CliRunner

BENCHMARKS = Path(__file__).parents[3] / "scripts" / "benchmarks"
COMMANDS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if "typer.run(main)" in path.read_text())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_emoji(name: str) -> None:
    """Rich prints one for a name between colons, such as that in START:END:STEP."""
    app = typer.Typer()
    app.command()(importlib.import_module(f"scripts.benchmarks.{name}").main)
    shown = CliRunner().invoke(app, ["--help"], env={"TERMINAL_WIDTH": "200"})
    assert shown.exit_code == 0, shown.output
    assert not [character for character in shown.output if ord(character) >= 0x1F000]
    assert Emoji.replace(shown.output) == shown.output
