"""Thousands of random HTTP requests and WebSocket sessions: each is answered once, nothing crashes, nothing is left."""

import asyncio
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from qwen3_tts_gateway.audio.formats import FORMATS
from qwen3_tts_gateway.schema import SpeechBody
from tests.e2e.serving import eventually
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer

pytestmark = pytest.mark.long

HTTP_REQUESTS = 8000
WEBSOCKET_SESSIONS = 2000
CALLERS = 32
LIMIT_SECONDS = 20.0  # for one request
SPEECH = "/v1/audio/speech"
BATCH = f"{SPEECH}/batch"
STATUSES = {200, 400, 404, 405, 413, 429, 500, 503}
# Answers of the stub server; the last three are its errors.
SCRIPTS: tuple[dict[str, Any], ...] = (
    {"chunks": [[0, 1]]},
    {"chunks": [[0, 1], [5, 2]]},
    {"chunks": []},
    {"chunks": [[0, 1]], "error": "INTERNAL: broken"},
    {"error": "UNAVAILABLE: busy: 64 streams run"},
    {"chunks": [[0, 1]], "close": True},
)
VALUES: tuple[Any, ...] = (
    None,
    0,
    -1,
    1,
    2**63,
    1e308,
    "",
    "x" * 5000,
    "ryan",
    "alloy",
    [],
    {},
    {"id": "a"},
    True,
    "\x00",
    "\U0001f600",
)
FIELDS = sorted(SpeechBody.model_fields)
OTHER = (
    ("GET", "/"),
    ("GET", "/v1/models"),
    ("GET", "/v1/audio/models"),
    ("GET", "/v1/voices"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/models/%ff"),
    ("GET", "/v1/audio/voices?model=x"),
    ("DELETE", "/v1/audio/voices/a%2fb"),
    ("PUT", SPEECH),
    ("GET", "/metrics"),
)


class Connection:
    """One HTTP/1.1 connection, opened again when the server closes it."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._port = int(gateway.address.split(":")[1])
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, head: str, body: bytes, request_id: str, leave: bool) -> int:
        """Returns the status, 0 for an aborted transfer or a request that leaves before its response."""
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        lines = f"{head} HTTP/1.1\r\nHost: a\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(lines.encode() + body)
        if leave:
            self.close()
            return 0
        return await self._answer(request_id)

    async def _answer(self, request_id: str) -> int:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        assert headers["x-request-id"] == request_id, "the answer belongs to another request"
        try:
            if "content-length" in headers:
                await self._reader.readexactly(int(headers["content-length"]))
            else:
                while size := int(await self._reader.readuntil(b"\r\n"), 16):
                    await self._reader.readexactly(size + 2)
                await self._reader.readexactly(2)
        except asyncio.IncompleteReadError:
            self.close()
            return 0
        return int(lines[0].split()[1])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def http_request(rng: random.Random, connection: Connection, number: int) -> str:
    method, path = (
        ("POST", SPEECH) if rng.random() < 0.8 else rng.choice((*OTHER, ("POST", "/v1/audio/voices"), ("POST", BATCH)))
    )
    body = content(rng, path == BATCH) if method == "POST" else b""
    leave = rng.random() < 0.1
    status = await connection.ask(f"{method} {path}", body, f"fuzz-{number}", leave)
    assert status in STATUSES | {0}, (status, method, path, body[:200])
    return "left" if leave else str(status or "aborted")


def content(rng: random.Random, is_batch: bool) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(200))
    fields = speech_fields(rng)
    if is_batch:
        fields["items"] = [speech_fields(rng) for _ in range(rng.randrange(4))]
    data = json.dumps(fields).encode()
    return data[: rng.randrange(len(data))] if rng.random() < 0.05 else data


def speech_fields(rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "input": json.dumps(rng.choice(SCRIPTS)),
        "response_format": rng.choice(list(FORMATS)),
        "stream_format": rng.choice(["audio", "sse"]),
    }
    if rng.random() < 0.3:
        fields |= {"speed": rng.choice([0.25, 1.5, 4]), "sample_rate": rng.choice([8000, 24_000, 48_000])}
    if rng.random() < 0.3:
        fields[rng.choice(FIELDS)] = rng.choice(VALUES)
    return fields


async def websocket_session(rng: random.Random, gateway: RunningGateway) -> str:
    """Sends random messages; a session that stays to the end gets a session.done for each input.done."""
    async with connect(f"ws://{gateway.address}{SPEECH}/stream") as socket:
        await socket.send(json.dumps({"type": "session.config", "response_format": "pcm", **session_fields(rng)}))
        try:
            for _ in range(rng.randrange(6)):
                await socket.send(message(rng))
            if rng.random() < 0.3:
                return "left"
            await socket.send(json.dumps({"type": "session.close"}))
            counts: Counter[str] = Counter()
            async for received in socket:
                counts[json.loads(received)["type"] if isinstance(received, str) else "audio"] += 1
        except ConnectionClosed:
            return "refused"
    assert counts["audio.start"] == counts["audio.done"]
    return "closed"


def session_fields(rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"stream_audio": rng.random() < 0.7}
    if rng.random() < 0.2:
        fields[rng.choice(FIELDS)] = rng.choice(VALUES)
    return fields


def message(rng: random.Random) -> str | bytes:
    kind = rng.choice(["input.text", "input.text", "input.done", "input.done", "input.cancel", "session.config", "x"])
    text = rng.choice([json.dumps(rng.choice(SCRIPTS)), " more", "", 7, None])
    plain = json.dumps({"type": kind, "text": text})
    sent: list[str | bytes] = [*[plain] * 8, plain[:-3], rng.randbytes(20)]
    return rng.choice(sent)


async def every(count: int, one: Callable[[int, int], Awaitable[str]]) -> Counter[str]:
    """Runs `one(number, caller)` for all numbers, on CALLERS callers."""
    outcomes: Counter[str] = Counter()

    async def caller(first: int) -> None:
        for number in range(first, count, CALLERS):
            async with asyncio.timeout(LIMIT_SECONDS):
                outcomes[await one(number, first)] += 1

    await asyncio.gather(*map(caller, range(CALLERS)))
    return outcomes


async def fuzz_http(gateway: RunningGateway) -> Counter[str]:
    connections = [Connection(gateway) for _ in range(CALLERS)]
    outcomes = await every(
        HTTP_REQUESTS, lambda number, caller: http_request(random.Random(number), connections[caller], number)
    )
    for connection in connections:
        connection.close()
    return outcomes


async def fuzz_websocket(gateway: RunningGateway) -> Counter[str]:
    return await every(WEBSOCKET_SESSIONS, lambda number, caller: websocket_session(random.Random(number), gateway))


@pytest.mark.parametrize("fuzz", [fuzz_http, fuzz_websocket])
def test_each_request_is_answered_once(fuzz: Callable[[RunningGateway], Any], caplog: pytest.LogCaptureFixture) -> None:
    with StubServer(frames=1) as stub, RunningGateway(stub.url) as gateway:
        start_s = time.monotonic()
        outcomes = asyncio.run(fuzz(gateway))
        print(f"{time.monotonic() - start_s:.1f} s: {dict(outcomes)}")
        eventually(lambda: gateway.services.backend.streams == 0)
        eventually(lambda: stub.servicer.running == 0)
        assert not any(gateway.services.access.running.values())
        assert 'outcome="crashed"' not in gateway.services.metrics.page().decode()
    crashes = [record for record in caplog.records if is_crash(record)]
    assert not crashes, crashes[0].getMessage() + str(crashes[0].exc_info)


def is_crash(record: logging.LogRecord) -> bool:
    """An error of the gateway other than an aborted transfer.

    grpc.aio logs calls of the stub server that the gateway cancels, and wakes event loops of this process that are
    closed already.
    """
    if record.levelno < logging.ERROR or record.name.startswith("grpc"):
        return False
    return "TransferAborted" not in str(record.exc_info) and "PollerCompletionQueue" not in record.getMessage()
