"""`qwen3-tts gateway`: serve OpenAI's speech API in front of Triton servers."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from qwen3_tts_client.errors import ClientError, ExitCode


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="all settings (docs/gateway.md)")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="default 8080; 0 chooses a free one")
    parser.add_argument(
        "-u", "--url", dest="servers", action="append", metavar="HOST:PORT", help="gRPC endpoint; repeat for several"
    )
    parser.add_argument(
        "-m", "--model-name", dest="models", action="append", metavar="NAME", help="Triton model; repeat for several"
    )
    parser.add_argument("--keys-file", type=Path, metavar="FILE", help="API keys: lines of name and SHA-256")
    parser.add_argument("--no-auth", dest="auth", action="store_false", default=None, help="serve without API keys")
    parser.add_argument("--cloning", choices=("on", "consent", "off"), help="cloned voices (default on)")
    parser.add_argument("--cors-origins", nargs="+", metavar="ORIGIN", help="sites whose pages may call")
    parser.add_argument("--log-text", action="store_true", default=None, help="log texts and voices")
    parser.add_argument("--new-key", metavar="NAME", help="print a new API key and its line for the keys file, and end")


def run(args: argparse.Namespace) -> ExitCode:
    try:
        from qwen3_tts_gateway import config, serving
        from qwen3_tts_gateway.access import new_key
    except ImportError as error:
        raise ClientError(f"{error.name} is not installed: pip install 'qwen3-tts-triton[gateway]'") from None
    if args.new_key:
        print("\n".join(new_key(args.new_key)))
        return ExitCode.OK
    asyncio.run(serving.serve(config.load(args.config, _flags(args, config.Settings))))
    return ExitCode.OK


def _flags(args: argparse.Namespace, settings: Any) -> dict[str, Any]:
    return {name: getattr(args, name) for name in settings.model_fields if hasattr(args, name)}
