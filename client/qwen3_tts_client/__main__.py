"""`qwen3-tts`: synthesise speech, benchmark a server, report the results."""

import argparse
import contextlib
import importlib
import os
import sys

from qwen3_tts_client.commands import COMMANDS, PROGRAM, make_parser
from qwen3_tts_client.errors import STANDARD_OUTPUT, ClientError, ExitCode, reported
from qwen3_tts_client.proxies import bypass_for_local_addresses


def main(argv: list[str] | None = None) -> int:
    """Returns an ExitCode."""
    args = make_parser().parse_args(argv)
    bypass_for_local_addresses()
    try:
        return int(_run(args))
    except ClientError as error:
        if error.code is ExitCode.OUTPUT:
            _discard_output()
        return _fail(args, str(error), error.code)
    except BrokenPipeError:
        # The reader has what it wanted, as `head` does.
        _discard_output()
        return int(ExitCode.PIPE)
    except OSError as error:
        return _fail(args, f"{error.filename or 'input or output'}: {error.strerror or error}", ExitCode.OUTPUT)
    except KeyboardInterrupt:
        return _fail(args, "interrupted", ExitCode.INTERRUPTED)


def _run(args: argparse.Namespace) -> ExitCode:
    try:
        code: ExitCode = importlib.import_module(COMMANDS[args.command][0]).run(args)
    finally:
        _flush_output()
    return code


def _flush_output() -> None:
    if sys.stdout is not None:
        with reported(STANDARD_OUTPUT):
            sys.stdout.flush()


def _fail(args: argparse.Namespace, message: str, code: ExitCode) -> int:
    print(f"{PROGRAM} {args.command}: {message}", file=sys.stderr)
    return int(code)


def _discard_output() -> None:
    """Keeps the interpreter from flushing what cannot be written, which it would report when it ends."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
