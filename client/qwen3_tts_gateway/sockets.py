"""What the WebSocket endpoints share."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from qwen3_tts_gateway.errors import APIError

POLICY_VIOLATION = 1008
# The client left: noticed by receiving, by sending, or by sending again.
GONE = (WebSocketDisconnect, WebSocketDisconnected)


async def receive(websocket: WebSocket, idle_s: float, is_idle: Callable[[], bool]) -> Message:
    """Raises WebSocketDisconnect, and TimeoutError for a client without a message or speech for `idle_s`."""
    while True:
        try:
            message = await asyncio.wait_for(websocket.receive(), idle_s)
        except TimeoutError:
            if is_idle():
                raise
            continue
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        return message


def parse_json(message: Message) -> Any:
    """Raises APIError."""
    try:
        return json.loads(message.get("text") or "")
    except (ValueError, RecursionError):
        raise APIError(400, "the message is not JSON", code="invalid_json") from None


def idle_error(idle_s: float) -> APIError:
    return APIError(408, f"no message for {idle_s:g} s", code="idle")
