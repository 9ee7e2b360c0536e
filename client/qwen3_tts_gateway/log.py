"""One JSON line for each request, its id, and its trace context."""

import json
import logging
import re
import sys
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qwen3_tts_client.protocol import MORE_TEXT
from qwen3_tts_gateway.errors import TransferAborted
from qwen3_tts_gateway.metrics import Metrics

REQUEST_ID = "x-request-id"
QUIET_PATHS = ("/healthz", "/health", "/livez", "/metrics")
TRACE_HEADERS = ("traceparent", "tracestate")
# The name of a voice is logged only with log_text.
VOICE_PATH = "/v1/audio/voices/"
_ID = re.compile(r"[\w.:-]{1,128}")
_TRACE = re.compile(r"[!-~]{1,512}")
_access = logging.getLogger("qwen3_tts_gateway.access")


@dataclass
class Exchange:
    """A request and what became of it."""

    request_id: str
    path: str
    method: str
    trace: tuple[tuple[str, str], ...] = ()
    status: int = 0
    outcome: str = ""
    key: str | None = None
    model: str | None = None
    format: str | None = None
    characters: int | None = None
    audio_s: float | None = None
    first_byte_ms: float | None = None
    duration_ms: float = 0.0
    finish_reason: str | None = None
    error: str | None = None  # the server's message; not of refusals, which may quote the text
    text: str | None = None  # only with log_text
    voice: str | None = None  # only with log_text
    started_s: float = field(default_factory=time.perf_counter, repr=False)

    def elapsed_ms(self) -> float:
        return round((time.perf_counter() - self.started_s) * 1e3, 2)


def exchange_of(scope: Scope) -> Exchange:
    exchange: Exchange = scope["state"]["exchange"]
    return exchange


class AccessLog:
    """ASGI middleware: names, times, counts and logs each request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        exchange = _begin(scope)
        scope.setdefault("state", {})["exchange"] = exchange
        try:
            await self._app(scope, receive, _watching(exchange, send))
        except TransferAborted as error:
            exchange.error = str(error)
            exchange.outcome = exchange.outcome or "aborted"
            raise
        except BaseException:
            exchange.outcome = exchange.outcome or "crashed"
            raise
        finally:
            record(exchange, self._metrics)


def record(exchange: Exchange, metrics: Metrics) -> None:
    """Counts and logs a request that has ended."""
    exchange.duration_ms = exchange.elapsed_ms()
    exchange.outcome = exchange.outcome or ("ok" if exchange.status < 400 else "refused")
    first_byte_ms = exchange.first_byte_ms if exchange.audio_s else None
    metrics.count_request(exchange.path, exchange.outcome, exchange.format or "", first_byte_ms)
    level = logging.DEBUG if exchange.path in QUIET_PATHS else logging.INFO
    _access.log(level, "request", extra={"fields": _fields(exchange)})


def _fields(exchange: Exchange) -> dict[str, Any]:
    values = asdict(exchange) | dict(exchange.trace)
    hidden = ("trace", "started_s")
    return {name: value for name, value in values.items() if name not in hidden and value not in (None, "")}


def _begin(scope: Scope) -> Exchange:
    headers = Headers(scope=scope)
    given = headers.get(REQUEST_ID, "")
    return Exchange(
        request_id=given if _ID.fullmatch(given) and given != MORE_TEXT else uuid.uuid4().hex,
        path=VOICE_PATH if scope["path"].startswith(VOICE_PATH) else scope["path"],
        method=scope.get("method", "WS"),
        trace=tuple((name, headers[name]) for name in TRACE_HEADERS if _TRACE.fullmatch(headers.get(name, ""))),
    )


def _watching(exchange: Exchange, send: Send) -> Send:
    async def watched(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
            exchange.status = message.get("status", 101)
            MutableHeaders(scope=message)[REQUEST_ID] = exchange.request_id
        elif message["type"] == "websocket.close" and not exchange.status:
            exchange.status = 403
        elif exchange.first_byte_ms is None and (message.get("body") or message.get("bytes")):
            exchange.first_byte_ms = exchange.elapsed_ms()
        await send(message)

    return watched


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, Any] = {"time": self.formatTime(record), "level": record.levelname.lower()}
        values["message"] = record.getMessage()
        values |= getattr(record, "fields", {})
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


class _Aborts(logging.Filter):
    """uvicorn logs an aborted transfer as a crash of the application."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], TransferAborted))


def configure() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(_Aborts())
    for name in ("qwen3_tts_gateway", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
