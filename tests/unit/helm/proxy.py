"""The chart's Envoy configuration, run by a real Envoy in front of stub servers."""

import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.stub_server import StubServer
from tests.ports import free_ports
from tests.unit.helm.chart import MINIMAL, NAME, NAMESPACE, one, render

ENVOY = Path(sys.executable).parent / "envoy"
START_SECONDS = 60
POLL_SECONDS = 0.02
HEADER_BYTES, QUESTION_TAIL_BYTES = 12, 4  # of a DNS message
IPV4 = 1


SERVICE = f"{NAME}-server.{NAMESPACE}.svc.cluster.local."


def configuration(values: Path = MINIMAL) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(one(render(values), "ConfigMap", "envoy")["data"]["envoy.yaml"])
    return config


class Server:
    """A stub server, and the readiness of its model on another port."""

    def __init__(self, stack: ExitStack) -> None:
        self.is_ready = True
        self.stub = stack.enter_context(StubServer(frames=1))
        readiness = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=readiness.serve_forever, args=(POLL_SECONDS,), daemon=True).start()
        stack.callback(readiness.shutdown)
        self.grpc_port, self.http_port = int(self.stub.url.rsplit(":", 1)[1]), readiness.server_port

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send_response(200 if server.is_ready and self.path == "/v2/models/qwen3_tts/ready" else 400)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class NameServer:
    """Answers DNS queries for `name` with `addresses`, and others with none."""

    def __init__(self, name: str, addresses: list[str]) -> None:
        self.name, self.addresses = name, addresses
        self.asked: set[str] = set()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            query, sender = self._socket.recvfrom(512)
            self._socket.sendto(self._answer(query), sender)

    def _answer(self, query: bytes) -> bytes:
        labels, end = [], HEADER_BYTES
        while length := query[end]:
            labels.append(query[end + 1 : end + 1 + length].decode())
            end += 1 + length
        name, question = ".".join(labels), query[HEADER_BYTES : end + 1 + QUESTION_TAIL_BYTES]
        self.asked.add(name)
        is_known = name == self.name and question[-3] == IPV4
        found = self.addresses if is_known else []
        # A pointer to the question's name, type A, class IN, no time to live, 4 bytes.
        records = [b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(address) for address in found]
        counts = struct.pack(">4H", 1, len(records), 0, 0)
        return query[:2] + b"\x81\x80" + counts + question + b"".join(records)

    def resolver(self) -> dict[str, Any]:
        kind = "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"
        address = {"socket_address": {"address": "127.0.0.1", "port_value": self.port}}
        return {"name": "envoy.network.dns_resolver.cares", "typed_config": {"@type": kind, "resolvers": [address]}}


class Proxy:
    """`admin` and `status` are the bases of URLs, `url` is the gRPC endpoint."""

    def __init__(self, process: subprocess.Popen[bytes], ports: list[int]) -> None:
        self.process = process
        self.url, self.admin_port = f"127.0.0.1:{ports[0]}", ports[2]
        self.status, self.admin = (f"http://127.0.0.1:{port}" for port in ports[1:])

    def healthy(self) -> int:
        """Servers that get streams."""
        return self.count("cluster.servers.membership_healthy")

    def count(self, name: str) -> int:
        """A statistic of Envoy."""
        return int(get(f"{self.admin}/stats?filter=^{name}$")[1].rsplit(":", 1)[1])

    def wait(self, condition: Callable[[], bool]) -> None:
        """Polls; Envoy reports no changes."""
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            assert self.process.poll() is None, "Envoy has ended"
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)


def get(url: str) -> tuple[int, str]:
    """Status and body; 0 if there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@contextmanager
def running(servers: list[Server], folder: Path, names: NameServer | None = None) -> Iterator[Proxy]:
    """Envoy with the chart's configuration on free ports, in front of these servers of this machine."""
    ports = free_ports(3)
    config = configuration()
    config["admin"]["address"]["socket_address"]["port_value"] = ports[2]
    resources = config["static_resources"]
    for listener, port in zip(resources["listeners"], ports, strict=False):
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    pool, admin = resources["clusters"]
    admin["load_assignment"]["endpoints"][0]["lb_endpoints"] = [_endpoint("127.0.0.1", ports[2])]
    if names:
        pool["cluster_type"]["typed_config"]["typed_dns_resolver_config"] = names.resolver()
    host = SERVICE if names else "localhost"
    pool["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        _endpoint(host, server.grpc_port, server.http_port) for server in servers
    ]
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [ENVOY, "--config-path", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    with subprocess.Popen([*map(str, command), "--use-dynamic-base-id"]) as process:
        proxy = Proxy(process, ports)
        try:
            proxy.wait(lambda: get(f"{proxy.status}/ready") == (200, "LIVE\n"))
            yield proxy
        finally:
            process.kill()


def _endpoint(host: str, port: int, health_port: int | None = None) -> dict[str, Any]:
    endpoint: dict[str, Any] = {"address": {"socket_address": {"address": host, "port_value": port}}}
    if health_port:
        endpoint["health_check_config"] = {"port_value": health_port}
    return {"endpoint": endpoint}
