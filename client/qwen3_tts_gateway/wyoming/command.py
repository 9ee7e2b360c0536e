"""`qwen3-tts wyoming`: serve the Wyoming protocol of Home Assistant in front of a server."""

import argparse
import asyncio

from qwen3_tts_client import options
from qwen3_tts_client.errors import ClientError, ExitCode


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--uri", default="tcp://127.0.0.1:10200", help="tcp://HOST:PORT or unix://PATH")
    parser.add_argument("--voice", metavar="NAME", help="for requests without a voice (default: the first listed)")
    parser.add_argument("--instruct", help="CustomVoice: style; VoiceDesign: the voice")
    parser.add_argument("--zeroconf", metavar="NAME", help="announce the server to Home Assistant under this name")
    options.add_server_options(parser)


def run(args: argparse.Namespace) -> ExitCode:
    try:
        from qwen3_tts_gateway.wyoming import serving
    except ImportError as error:
        raise ClientError(f"{error.name} is not installed: pip install 'qwen3-tts-triton[wyoming]'") from None
    asyncio.run(serving.serve(args))
    return ExitCode.OK
