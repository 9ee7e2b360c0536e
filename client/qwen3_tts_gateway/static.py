"""The page at / and its files."""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The preview of a recording is a blob.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; media-src blob:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # a stored copy is used if its ETag is still current
}


class Page:
    """Its files are in memory, and need no API key."""

    def __init__(self) -> None:
        self._files = {path.name: _read(path) for path in FOLDER.iterdir()}

    def routes(self) -> list[Route]:
        return [Route("/", self.sender(INDEX)), Route("/page/{file}", self.sender())]

    def sender(self, name: str | None = None) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of one file, or of the one that the path names."""

        async def send(request: Request) -> Response:
            return self._send(name or request.path_params["file"], request)

        return send

    def _send(self, name: str, request: Request) -> Response:
        if name not in self._files:
            raise HTTPException(404)
        content, headers = self._files[name]
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return content, HEADERS | {"content-type": MEDIA_TYPES[path.suffix], "etag": etag}
