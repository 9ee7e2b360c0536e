"""Shows HTTP/1.0 clients, who take the end of the connection for that of the audio, that a response broke off."""

import asyncio
import functools
import socket
import struct

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

RESET = "reset"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: wait for unsent data, 0 s


class ResettableProtocol(H11Protocol):
    """Puts a function into the state of each scope, after which the connection ends with a reset."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = self.app_state | {RESET: functools.partial(_reset_on_close, transport)}


class ResetAborted:
    """ASGI middleware. HTTP/1.1 needs no reset: it lacks the last chunk."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("http_version") != "1.0":
            await self._app(scope, receive, send)
            return
        is_open = False

        async def watched(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except BaseException:
            if is_open:
                scope["state"][RESET]()
            raise


def _reset_on_close(transport: asyncio.Transport) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
