"""`qwen3-tts completion`: print a script that completes the commands in a shell."""

import argparse

from qwen3_tts_client.errors import ClientError, ExitCode

SHELLS = ("bash", "zsh", "tcsh")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help='for example: eval "$(qwen3-tts completion bash)"')


def run(args: argparse.Namespace) -> ExitCode:
    try:
        import shtab
    except ImportError:
        raise ClientError("shtab is not installed: pip install 'qwen3-tts-triton[completion]'") from None
    # Imported here: the parser has the options of this module.
    from qwen3_tts_client.commands import make_parser

    print(shtab.complete(make_parser(), args.shell))
    return ExitCode.OK
