"""`qwen3-tts`: synthesise speech, benchmark a server, report the results."""

import argparse
import importlib
import sys

from qwen3_tts_client.errors import ClientError, ExitCode

# Command to (module, help); a module defines add_options and run.
COMMANDS = {
    "say": ("qwen3_tts_client.say", "synthesise one text"),
    "voices": ("qwen3_tts_client.voices", "register, list and delete cloned voices"),
    "gateway": ("qwen3_tts_client.gateway.command", "serve OpenAI's speech API in front of a server"),
    "wyoming": ("qwen3_tts_client.wyoming.command", "serve Home Assistant's Wyoming protocol in front of a server"),
    "bench": ("qwen3_tts_client.bench.command", "benchmark a server under load"),
    "report": ("qwen3_tts_client.analysis.report", "render a record as an HTML page"),
    "import": ("qwen3_tts_client.analysis.perf_analyzer", "import a perf_analyzer export"),
    "compare": ("qwen3_tts_client.analysis.compare", "compare two records"),
    "capacity": ("qwen3_tts_client.capacity.command", "plan the servers for a number of listeners from a record"),
}


def main(argv: list[str] | None = None) -> int:
    """Returns an ExitCode."""
    parser = argparse.ArgumentParser(prog="qwen3-tts", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text.capitalize())
        importlib.import_module(module).add_options(command)
    args = parser.parse_args(argv)
    try:
        return int(importlib.import_module(COMMANDS[args.command][0]).run(args))
    except ClientError as error:
        print(f"{parser.prog} {args.command}: {error}", file=sys.stderr)
        return int(error.code)
    except BrokenPipeError:  # the reader closed the pipe
        return int(ExitCode.REQUEST)
    except KeyboardInterrupt:
        print(f"{parser.prog} {args.command}: interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
