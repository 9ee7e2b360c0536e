"""A gateway in front of a stub server."""

import json
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer
from tests.fakes.word_server import WordServer


@pytest.fixture(scope="package")
def stub() -> Iterator[StubServer]:
    with StubServer(frames=3) as server:
        yield server


@pytest.fixture(scope="package")
def gateway(stub: StubServer) -> Iterator[RunningGateway]:
    with RunningGateway(stub.url) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url) as client:
        yield client


def script(**fields: object) -> str:
    """Text that the stub server follows."""
    return json.dumps(fields)


def wait_for(condition: Callable[[], bool], limit_s: float = 60) -> None:
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() < start_s + limit_s
        time.sleep(0.005)


@pytest.fixture
def words() -> Iterator[WordServer]:
    with WordServer() as server:
        yield server
