"""Stands in for scripts.server.tritonserver in tests of the fleet: a stub server that is ready at once, and drains."""

import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from scripts.server.drain import FILE_VARIABLE
from tests.fakes.stub_server import StubServer


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    """The first SIGTERM writes the drain file; a second one, or a file `drained` beside it, ends the process."""
    ports = {name: int(port) for name, port in (option.split("=") for option in sys.argv[1:] if "-port=" in option)}
    file, over = Path(os.environ[FILE_VARIABLE]), threading.Event()
    file.unlink(missing_ok=True)

    def stop(number: int, frame: object) -> None:
        if file.exists():
            over.set()
        file.touch()

    signal.signal(signal.SIGTERM, stop)
    server = ThreadingHTTPServer(("127.0.0.1", ports["--http-port"]), Ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with StubServer(grpc_port=ports["--grpc-port"]):
        print(f"stub {os.getpid()} serves", flush=True)
        while not over.wait(0.05):
            if file.with_name("drained").exists():
                break


if __name__ == "__main__":
    main()
