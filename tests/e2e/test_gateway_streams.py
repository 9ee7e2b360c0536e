"""The gateway in front of a tritonserver whose talker speaks until it is stopped."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from scripts.server.tritonserver import TritonServer
from tests.e2e.serving import Caller, eventually, serve
from tests.fakes.gateway import RunningGateway

FREED_SECONDS = 0.2
LONG = {"voice": "ryan", "response_format": "pcm", "max_new_tokens": 4000}


@pytest.fixture(scope="module")
def server(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Has one slot, and refuses a second stream."""
    single = {"QWEN3_TTS_MAX_STREAMS": "1", "QWEN3_TTS_OVERLOAD": "refuse"}
    with serve(scripted_repository, tmp_path_factory.mktemp("server"), scripted_environment | single) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server: TritonServer) -> Iterator[RunningGateway]:
    with RunningGateway(f"localhost:{server.ports.grpc}") as gateway:
        yield gateway


def http_stream(gateway: RunningGateway) -> Iterator[None]:
    body = {"input": "Hello.", **LONG}
    with httpx.stream("POST", f"{gateway.url}/v1/audio/speech", json=body) as response:
        parts = response.iter_raw()  # kept: dropping it closes the connection
        next(parts)
        yield


@contextmanager
def spoken_turn(gateway: RunningGateway) -> Iterator[ClientConnection]:
    with connect(f"ws://{gateway.address}/v1/audio/speech/stream") as socket:
        socket.send(json.dumps({"type": "session.config", "stream_audio": True, **LONG}))
        socket.send(json.dumps({"type": "input.text", "text": "Hello there. "}))
        socket.recv(timeout=10)
        yield socket


def websocket_stream(gateway: RunningGateway) -> Iterator[None]:
    with spoken_turn(gateway):
        yield


def cancelled_turn(gateway: RunningGateway) -> Iterator[None]:
    with spoken_turn(gateway) as socket:
        yield
        socket.send(json.dumps({"type": "input.cancel"}))
        time.sleep(2 * FREED_SECONDS)


@pytest.mark.timing
@pytest.mark.parametrize("stream", [http_stream, websocket_stream, cancelled_turn])
def test_a_listener_who_leaves_frees_the_slot(
    server: TritonServer, gateway: RunningGateway, stream: Callable[[RunningGateway], Iterator[None]]
) -> None:
    with Caller(server) as caller:
        for _ in range(3):
            running = stream(gateway)
            next(running)
            assert "busy" in str(caller.speak(max_frames=1).error)
            leaving = threading.Thread(target=next, args=(running, None))
            left_s = time.monotonic()
            leaving.start()
            eventually(lambda: caller.speak(max_frames=1).error is None, FREED_SECONDS)
            print(f"another stream had spoken {1e3 * (time.monotonic() - left_s):.0f} ms later")
            leaving.join()


def test_a_full_server_is_a_429(gateway: RunningGateway) -> None:
    running = http_stream(gateway)
    next(running)
    refused = httpx.post(f"{gateway.url}/v1/audio/speech", json={"input": "Hello."})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    next(running, None)
