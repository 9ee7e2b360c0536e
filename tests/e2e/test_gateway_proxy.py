"""The gateway behind a real nginx and a real Caddy with the files of docs/gateway.md."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.e2e.serving import ROOT
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer
from tests.ports import free_ports
from tests.unit.gateway.conftest import script

DOCS = (ROOT / "docs" / "gateway.md").read_text()
SPEECH = "/v1/audio/speech"
START_SECONDS = 10
BROKEN = {"input": script(chunks=[[0, 1]], error="INTERNAL: broken"), "response_format": "pcm"}
ABORTING_CADDY = (2, 7, 6)  # earlier ones complete an aborted body
NGINX_AS_INSTALLED = "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{gateway}; {more} }} }}"


@pytest.fixture(scope="module")
def stub() -> Iterator[StubServer]:
    with StubServer(frames=3) as stub:
        yield stub


@pytest.fixture(scope="module")
def gateway(stub: StubServer) -> Iterator[RunningGateway]:
    with RunningGateway(stub.url, trusted_proxies=("127.0.0.1",)) as gateway:
        yield gateway


def documented(name: str) -> str:
    [text] = re.findall(rf"^```{name}\n(.*?)^```$", DOCS, re.DOTALL | re.MULTILINE)
    return str(text)


@contextmanager
def running(command: list[str], port: int) -> Iterator[str]:
    """The address of a proxy that has started."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            url, start_s = f"http://localhost:{port}", time.monotonic()
            while not answers(url):
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < start_s + START_SECONDS
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()


def answers(url: str) -> bool:
    try:
        httpx.get(f"{url}/nothing")
    except httpx.TransportError:
        return False
    return True


@contextmanager
def nginx(server: str, port: int, folder: Path) -> Iterator[str]:
    program = shutil.which("nginx") or pytest.skip("no nginx")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    file = folder / "nginx.conf"
    file.write_text(f"events {{}}\npid {folder}/pid;\nhttp {{\naccess_log off;\n{paths}{server}}}\n")
    with running([program, "-p", str(folder), "-c", str(file), "-e", "stderr", "-g", "daemon off;"], port) as url:
        yield url


@contextmanager
def documented_nginx(gateway: RunningGateway, folder: Path) -> Iterator[str]:
    """Runs the documented configuration without TLS."""
    [port] = free_ports(1)
    server = re.sub(r" *ssl_.*\n", "", documented("nginx")).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    with nginx(server.replace("127.0.0.1:8080", gateway.address), port, folder) as url:
        yield url


@contextmanager
def documented_caddy(gateway: RunningGateway, folder: Path) -> Iterator[str]:
    """Runs the documented configuration without TLS."""
    program = shutil.which("caddy") or pytest.skip("no caddy")
    [port], file = free_ports(1), folder / "Caddyfile"
    site = documented("caddy").replace("speech.example", f"http://localhost:{port}")
    file.write_text("{\nadmin off\n}\n" + site.replace("127.0.0.1:8080", gateway.address))
    with running([program, "run", "--adapter", "caddyfile", "--config", str(file)], port) as url:
        yield url


def caddy_version() -> tuple[int, ...]:
    shown = subprocess.run(["caddy", "version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.findall(r"\d+", shown)[:3]))


@pytest.mark.parametrize("proxy", [documented_nginx, documented_caddy])
def test_a_documented_file_serves_pages_audio_and_sockets(
    proxy: Callable[[RunningGateway, Path], AbstractContextManager[str]], gateway: RunningGateway, tmp_path: Path
) -> None:
    with proxy(gateway, tmp_path) as url, httpx.Client(base_url=url, headers={"Origin": url}) as client:
        assert "Qwen3-TTS" in client.get("/").text
        assert len(client.post(SPEECH, json={"input": "Hello.", "response_format": "pcm"}).content) == 3 * 1920 * 2
        assert client.get("/v1/models", headers={"Origin": "http://evil.example"}).status_code == 403
        assert {client.get(path).status_code for path in ("/metrics", "/healthz", "/health", "/livez")} == {404}
        body = {"input": script(chunks=[[0, 1]], hang=True), "response_format": "pcm"}
        with client.stream("POST", SPEECH, json=body) as response:
            assert next(response.iter_raw()), "the proxy buffers"
        if proxy is documented_nginx or caddy_version() >= ABORTING_CADDY:
            with pytest.raises(httpx.RemoteProtocolError):
                client.post(SPEECH, json=BROKEN)
        events = client.post(SPEECH, json=BROKEN | {"stream_format": "sse"}).text
        assert "speech.audio.error" in events.splitlines()[-3]
        with connect(url.replace("http", "ws") + f"{SPEECH}/stream", origin=Origin(url)) as socket:
            socket.send(json.dumps({"type": "session.config"}))
            socket.send(json.dumps({"type": "session.close"}))


@pytest.mark.parametrize(
    ("more", "headers", "status"),
    [
        ("", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("", {}, 403),
        ("proxy_set_header X-Forwarded-Host $host;", {}, 200),
        ("proxy_set_header Host $host;", {}, 200),
    ],
)
def test_nginx_as_installed(
    gateway: RunningGateway, more: str, headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    [port] = free_ports(1)
    server = NGINX_AS_INSTALLED.format(port=port, gateway=gateway.address, more=more)
    with nginx(server, port, tmp_path) as url:
        assert httpx.get(f"{url}/v1/models", headers={"Origin": url, **headers}).status_code == status
        body = {"input": "Hello.", "response_format": "pcm"}
        assert len(httpx.post(url + SPEECH, json=body).content) == 3 * 1920 * 2
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(url + SPEECH, json=BROKEN)
