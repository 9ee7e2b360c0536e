"""Refuses pages of other sites: a browser would let them use a gateway on the same machine."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qwen3_tts_client.gateway.errors import APIError, refusal


class SameOrigin:
    """ASGI middleware; a request without the header Origin comes from no page."""

    def __init__(self, app: ASGIApp, allowed: list[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_allowed(Headers(scope=scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "origin not allowed"})
        else:
            refused = APIError(403, "origin: pages of this site may not call the gateway", code="origin_not_allowed")
            await refusal(refused)(scope, receive, send)

    def _is_allowed(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None or "*" in self._allowed or origin in self._allowed:
            return True
        return urlsplit(origin).netloc == headers.get("host")
