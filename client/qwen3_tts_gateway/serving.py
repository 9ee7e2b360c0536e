"""Runs the gateway under uvicorn until it is told to stop."""

import socket
import sys

import uvicorn

from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_gateway import log
from qwen3_tts_gateway.aborts import ResettableProtocol
from qwen3_tts_gateway.access import Access
from qwen3_tts_gateway.app import make_app
from qwen3_tts_gateway.config import Settings
from qwen3_tts_gateway.metrics import Metrics
from qwen3_tts_gateway.services import Services

GRACE_SECONDS = 30
BACKLOG = 2048
KEEP_ALIVE_SECONDS = 130  # LiveKit keeps idle connections for 120 s


async def serve(settings: Settings) -> None:
    """Raises ClientError for settings that do not work."""
    access = Access(settings)
    listener = _listen(settings.host, settings.port)
    log.configure()
    services = Services(settings, access, Metrics())
    config = server_config(services, GRACE_SECONDS)
    print(f"http://{settings.host}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    try:
        await uvicorn.Server(config).serve([listener])
    finally:
        await services.close()


def server_config(services: Services, grace_s: int) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(services),
        # httptools drops the body of a request that offers an upgrade to h2c, and sends chunks to HTTP/1.0 clients.
        http=ResettableProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws_max_size=services.settings.max_body_bytes,
        timeout_graceful_shutdown=grace_s,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        server_header=False,
        proxy_headers=False,  # they would replace the address that trusted_proxies is about
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ClientError(f"{host}:{port}: {error.strerror or error}", ExitCode.SERVER) from None
