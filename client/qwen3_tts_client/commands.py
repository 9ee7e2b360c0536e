"""The commands of `qwen3-tts` and their parser."""

import argparse
import importlib

from qwen3_tts_client import __version__
from qwen3_tts_client.errors import EXIT_CODES

PROGRAM = "qwen3-tts"
# Command to (module, help); a module defines add_options and run.
COMMANDS = {
    "say": ("qwen3_tts_client.say", "synthesise one text"),
    "voices": ("qwen3_tts_client.voices", "list built-in speakers; register, list and delete cloned voices"),
    "gateway": ("qwen3_tts_gateway.command", "serve OpenAI's speech API in front of a server"),
    "wyoming": ("qwen3_tts_gateway.wyoming.command", "serve Home Assistant's Wyoming protocol in front of a server"),
    "bench": ("qwen3_tts_client.bench.command", "benchmark a server under load"),
    "report": ("qwen3_tts_client.analysis.report", "render a record as an HTML page"),
    "import": ("qwen3_tts_client.analysis.perf_analyzer", "import a perf_analyzer export"),
    "compare": ("qwen3_tts_client.analysis.compare", "compare two records"),
    "capacity": ("qwen3_tts_client.capacity.command", "plan the servers for a number of listeners from a record"),
    "completion": ("qwen3_tts_client.completion", "print a script that completes the commands in a shell"),
}
DESCRIPTION = "Synthesise speech, benchmark a server, report the results."


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog="exit codes: " + ", ".join(f"{code.value} {meaning}" for code, meaning in EXIT_CODES.items()),
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text.capitalize())
        importlib.import_module(module).add_options(command)
    return parser
