"""Serves Wyoming connections until it is told to stop."""

import argparse
import asyncio
import functools
import logging
import signal
import sys
from urllib.parse import urlparse

from wyoming.server import AsyncServer, AsyncStdioServer

from qwen3_tts_client import options
from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.server import Server
from qwen3_tts_gateway.wyoming.handler import SpeechHandler
from qwen3_tts_gateway.wyoming.voice_server import VoiceServer

ANY_HOST = ("0.0.0.0", "::")


async def serve(args: argparse.Namespace) -> None:
    """Raises ClientError for an address that does not work."""
    logging.basicConfig(format="%(levelname)s %(message)s")
    try:
        listener = AsyncServer.from_uri(args.uri)
    except ValueError as error:
        raise ClientError(f"--uri {args.uri}: {error}") from None
    if isinstance(listener, AsyncStdioServer):
        raise ClientError(f"--uri {args.uri}: expected tcp://HOST:PORT or unix://PATH")
    with Server(args.url or "localhost:8001", args.model_name) as server:
        voice_server = VoiceServer(server, options.timeouts(args), args.voice, args.instruct)
        try:
            await listener.start(functools.partial(SpeechHandler, voice_server))
            if args.zeroconf:
                await announce(args.uri, args.zeroconf)
            print(args.uri, file=sys.stderr, flush=True)
            await terminated()
            await listener.stop()
        except OSError as error:
            raise ClientError(f"--uri {args.uri}: {error.strerror or error}", ExitCode.SERVER) from None
        finally:
            await voice_server.close()


async def terminated() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await stopping.wait()


async def announce(uri: str, name: str) -> None:
    """Home Assistant looks for the service _wyoming._tcp by mDNS. Raises ClientError."""
    from wyoming.zeroconf import HomeAssistantZeroconf

    address = urlparse(uri)
    if address.scheme != "tcp" or address.port is None:
        raise ClientError(f"--zeroconf: --uri {uri} is no tcp://HOST:PORT")
    host = None if address.hostname in ANY_HOST else address.hostname
    await HomeAssistantZeroconf(address.port, name, host).register_server()
