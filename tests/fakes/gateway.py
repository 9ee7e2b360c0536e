"""A gateway on a free port, in its own thread."""

import asyncio
import socket
import threading
from typing import Any

import uvicorn

from qwen3_tts_gateway.access import Access
from qwen3_tts_gateway.config import Settings
from qwen3_tts_gateway.metrics import Metrics
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.serving import server_config

START_SECONDS = 20


class RunningGateway:
    """A context manager; `services` belongs to the gateway's event loop."""

    services: Services

    def __init__(self, *servers: str, **settings: Any) -> None:
        self.settings = Settings(servers=servers, **settings)
        self._access = Access(self.settings)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "RunningGateway":
        self._started = threading.Event()
        self._thread.start()
        assert self._started.wait(START_SECONDS)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join(START_SECONDS)

    async def _serve(self) -> None:
        self.services = Services(self.settings, self._access, Metrics())
        self._server = uvicorn.Server(server_config(self.services, grace_s=1))
        self._started.set()
        await self._server.serve([self._socket])
        await self.services.close()
