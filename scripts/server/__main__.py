"""The server's commands: `python -m scripts.server serve --help`."""

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

# A command's options that it does not know go on to tritonserver.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
# Command to (module, settings of its context). A module is imported when it is asked for: some load PyTorch.
COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "serve": ("scripts.server.serve", PASS_ON),
    "fleet": ("scripts.server.fleet.command", PASS_ON),
    "drain": ("scripts.server.drain", {}),
    "add-model": ("scripts.server.add_model", {}),
    "migrate-voices": ("scripts.server.migrate_voices", {}),
    "doctor": ("scripts.server.doctor", {}),
}


class Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, settings = COMMANDS[cmd_name]
        app = typer.Typer(add_completion=False)
        app.command(cmd_name, context_settings=settings)(importlib.import_module(module).main)
        return typer.main.get_command(app)


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Serve Qwen3-TTS, on one GPU or several, and look after a server."""


if __name__ == "__main__":
    app(prog_name="python -m scripts.server")
