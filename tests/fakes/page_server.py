"""An HTTP server that answers every path with the same text: a server's health or metrics."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


class PageServer(HTTPServer):
    """Answers every path with `text`."""

    def __init__(self, text: str = "") -> None:
        super().__init__(("localhost", 0), Handler)
        self.text = text
        self.url = f"http://localhost:{self.server_port}/metrics"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, PageServer)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(text: str = "") -> Iterator[PageServer]:
    with PageServer(text) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
