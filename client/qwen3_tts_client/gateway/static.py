"""The page at / and its files."""

import functools
import hashlib
from pathlib import Path

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


def page_routes() -> list[Route]:
    """One route for each file; they need no API key."""
    return [
        Route("/" if path.name == INDEX else f"/{path.name}", functools.partial(_send, *_read(path)))
        for path in sorted(FOLDER.iterdir())
    ]


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return content, HEADERS | {"content-type": MEDIA_TYPES[path.suffix], "etag": etag}


async def _send(content: bytes, headers: dict[str, str], request: Request) -> Response:
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)
