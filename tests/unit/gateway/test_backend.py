"""Choice of a server, the retry, and slow readers."""

import time

import httpx

from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer
from tests.unit.gateway.conftest import script, wait_for
from tests.unit.gateway.test_speech import PATH, post

DOWN = "localhost:1"


def test_requests_go_to_the_server_with_the_fewest_streams() -> None:
    with StubServer(frames=1) as a, StubServer(frames=1) as b, RunningGateway(a.url, b.url) as gateway:
        for _ in range(10):
            assert httpx.post(gateway.url + PATH, json={"input": "hello"}).status_code == 200
        assert min(len(server.servicer.received) for server in (a, b)) >= 5


def test_a_server_that_is_down_is_replaced_before_the_first_byte(stub: StubServer) -> None:
    with RunningGateway(DOWN, stub.url) as gateway:
        for _ in range(4):
            assert httpx.post(gateway.url + PATH, json={"input": "hello"}).status_code == 200


def test_no_server_is_unavailable() -> None:
    with RunningGateway(DOWN) as gateway:
        response = httpx.post(gateway.url + PATH, json={"input": "hello"})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert httpx.get(gateway.url + "/healthz").status_code == 503
        assert httpx.get(gateway.url + "/livez").status_code == 200


def test_a_busy_server_is_replaced_once(stub: StubServer) -> None:
    busy = script(error="UNAVAILABLE: busy: 1 streams run")
    with StubServer() as other, RunningGateway(stub.url, other.url) as gateway:
        before = len(stub.servicer.received) + len(other.servicer.received)
        assert httpx.post(gateway.url + PATH, json={"input": busy}).status_code == 429
        spoken = len(stub.servicer.received) + len(other.servicer.received) - before
        assert spoken == 4  # two asked what the checkpoint is for, and which speakers it has


def test_a_single_url_is_tried_again_once() -> None:
    """It may be a proxy, which chooses another server."""
    busy = script(error="UNAVAILABLE: the server is draining")
    with StubServer() as stub, RunningGateway(stub.url) as gateway:
        assert httpx.post(gateway.url + PATH, json={"input": script(chunks=[[0, 1]])}).status_code == 200
        before = len(stub.servicer.received)
        assert httpx.post(gateway.url + PATH, json={"input": busy}).status_code == 503
        assert len(stub.servicer.received) - before == 2


def test_a_request_that_waits_too_long_fails() -> None:
    with StubServer() as stub, RunningGateway(stub.url, chunk_seconds=0.3) as gateway:
        response = httpx.post(gateway.url + PATH, json={"input": script(hang=True)})
        assert (response.status_code, response.json()["error"]["message"]) == (504, "the server did not answer in time")


def test_a_slow_reader_slows_nobody_and_holds_little_memory(stub: StubServer, gateway: RunningGateway) -> None:
    """The reader takes nothing of 400 s of speech (19 MB), while others are served."""
    long = script(chunks=[[0, 250]] * 20, exact=False)
    with post(gateway, {"input": long, "response_format": "pcm"}, receive_buffer=4096):
        wait_for(lambda: gateway.services.backend.streams == 1)
        time.sleep(0.5)
        assert httpx.post(gateway.url + PATH, json={"input": script(chunks=[[0, 1]])}).status_code == 200
        assert gateway.services.backend.streams == 1, "the gateway has read all of it"
    wait_for(lambda: gateway.services.backend.streams == 0)


def test_metrics_count_requests_and_streams(client: httpx.Client) -> None:
    client.post(PATH, json={"input": script(chunks=[[0, 1]]), "response_format": "opus"})
    counted = 'requests_total{format="opus",outcome="ok",path="/v1/audio/speech"}'
    wait_for(lambda: counted in client.get("/metrics").text)
    page = client.get("/metrics").text
    assert 'qwen3_tts_gateway_first_byte_seconds_count{format="opus"}' in page
    # From a tenth of a second to ten.
    for bound in ("0.1", "0.5", "1.0", "5.0", "10.0"):
        assert f'first_byte_seconds_bucket{{format="opus",le="{bound}"}}' in page
    assert "qwen3_tts_gateway_streams 0.0" in page
