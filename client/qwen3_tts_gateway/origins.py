"""Refuses pages of other sites: a browser would let them use a gateway on the same machine."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qwen3_tts_gateway.errors import APIError, refusal

Networks = Sequence[IPv4Network | IPv6Network]


class SameOrigin:
    """ASGI middleware; a request without the header Origin comes from no page."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str], proxies: Networks) -> None:
        self._app = app
        self._allowed = allowed
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "origin not allowed"})
        else:
            refused = APIError(403, "origin: pages of this site may not call the gateway", code="origin_not_allowed")
            await refusal(refused)(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or "*" in self._allowed or origin in self._allowed:
            return True
        # Set by the browser alone, over HTTPS: right also behind a proxy that replaces Host.
        if headers.get("sec-fetch-site") == "same-origin":
            return True
        try:
            page = urlsplit(origin)
        except ValueError:
            return False
        if not page.netloc:
            return False
        host = headers.get("host", "")
        return page.netloc == host or (self._is_proxy(scope) and _is_forwarded(page, host, headers))

    def _is_proxy(self, scope: Scope) -> bool:
        if not (self._proxies and scope.get("client")):
            return False
        peer = ip_address(scope["client"][0])
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self._proxies)


def _is_forwarded(page: SplitResult, host: str, headers: Headers) -> bool:
    """Whether a proxy was asked for the page's own host; nginx's $host has no port."""
    forwarded = headers.get("x-forwarded-host", host).split(",")
    return any(name.strip() in (page.netloc, page.hostname) for name in forwarded)
