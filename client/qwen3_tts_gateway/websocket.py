"""WS /v1/audio/speech/stream: vllm-omni's protocol. Text comes in while audio goes out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from qwen3_tts_gateway.access import KEY_PROTOCOL, Key
from qwen3_tts_gateway.errors import APIError, refusal
from qwen3_tts_gateway.log import exchange_of
from qwen3_tts_gateway.schema import SessionOptions, parse
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.sockets import GONE, POLICY_VIOLATION, idle_error, parse_json, receive
from qwen3_tts_gateway.speaker import MAX_TURNS, Speaker
from qwen3_tts_gateway.tensors import check_length, is_unicode
from qwen3_tts_gateway.turn import Turn

MAX_PLAYED_MS = 1e9


class SpeechSocket:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket, exchange = WebSocket(scope, receive, send), exchange_of(scope)
        try:
            key = self._services.access.authenticate(websocket.headers)
        except APIError as error:
            await websocket.send_denial_response(refusal(error))
            return
        exchange.key = key.name
        await websocket.accept(_subprotocol(websocket))
        await Session(self._services, websocket, key).run()


def _subprotocol(websocket: WebSocket) -> str | None:
    """A browser closes a connection that selects none of the offered ones; the key must not come back."""
    offered: list[str] = websocket.scope.get("subprotocols", [])
    return next((name for name in offered if not name.startswith(KEY_PROTOCOL)), None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Session:
    """Reads messages while a Speaker speaks the turns in order."""

    def __init__(self, services: Services, websocket: WebSocket, key: Key) -> None:
        self._services = services
        self._websocket = websocket
        self._key = key
        self._speaker = Speaker(services, websocket, key)
        self._options: SessionOptions | None = None
        self._turn: Turn | None = None  # whose text is open
        self._turns = 0
        self._is_closing = False
        self._handlers: dict[str, Callable[[dict[str, Any]], Awaitable[None]]] = {
            "session.config": self._configure,
            "input.text": self._add_text,
            "input.done": self._end_text,
            "input.cancel": self._cancel,
            "session.close": self._close,
        }

    async def run(self) -> None:
        tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._speaker.run())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, GONE):
                raise error

    async def _read(self) -> None:
        """Returns when the client is to be disconnected. Raises WebSocketDisconnect."""
        while (message := await self._next_message()) is not None:
            if self._is_closing:
                continue
            try:
                await self._handle(parse_json(message))
            except APIError as error:
                await self._speaker.send_error(error)
                if self._options is None:
                    await self._websocket.close(POLICY_VIOLATION)
                    return

    async def _next_message(self) -> Message | None:
        """None once the client has been idle for too long. Raises WebSocketDisconnect."""
        idle_s = self._services.settings.idle_seconds
        try:
            return await receive(self._websocket, idle_s, lambda: self._speaker.is_idle)
        except TimeoutError:
            await self._speaker.send_error(idle_error(idle_s))
            await self._websocket.close(POLICY_VIOLATION)
            return None

    async def _handle(self, message: Any) -> None:
        """Raises APIError."""
        kind = message.get("type") if isinstance(message, dict) else None
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if handler is None:
            raise APIError(400, f"type: {str(kind)[:64]!r}: one of {', '.join(self._handlers)}", "type")
        if self._options is None and kind != "session.config":
            raise APIError(400, f"type: {kind!r}: the first message must be session.config", "type")
        await handler(message)

    async def _configure(self, message: dict[str, Any]) -> None:
        if self._turn is not None:
            raise APIError(400, "session.config: the text of an utterance is open: send input.done first", "type")
        options: SessionOptions = parse(SessionOptions, message)
        options.check_words()
        await self._services.models.resolve(options.model)
        self._options = options

    async def _add_text(self, message: dict[str, Any]) -> None:
        text = message.get("text")
        if not isinstance(text, str) or not is_unicode(text):
            raise APIError(400, "text: required, a string", "text")
        if not text:
            return
        settings = self._services.settings
        check_length(len(text) + (self._turn.text.characters if self._turn else 0), settings.max_input_characters)
        await self._services.access.spend_characters(self._key, len(text))
        (await self._open_turn()).text.append(text)

    async def _end_text(self, message: dict[str, Any]) -> None:
        (await self._open_turn()).text.end()
        self._turn = None

    async def _cancel(self, message: dict[str, Any]) -> None:
        played_ms = message.get("played_ms")
        if played_ms is None:
            self._silence()
            return
        if not _is_number(played_ms) or not 0 <= played_ms <= MAX_PLAYED_MS:
            raise APIError(400, f"played_ms: {str(played_ms)[:64]!r}: a number of milliseconds, from 0 on", "played_ms")
        index = message.get("utterance_index")
        turn = self._speaker.turn(index) if index is None or _is_number(index) else None
        if turn is None:
            reason = f"utterance_index: {str(index)[:64]}: none of the last {MAX_TURNS} utterances"
            raise APIError(400, reason, "utterance_index")
        heard = turn.heard(played_ms)
        self._silence()
        await self._websocket.send_json({"type": "audio.heard", "utterance_index": turn.index, **heard})

    def _silence(self) -> None:
        self._speaker.cancel()
        self._turn = None

    async def _close(self, message: dict[str, Any]) -> None:
        """The connection closes once everything has been spoken; until then messages are ignored."""
        self._is_closing = True
        if self._turn is not None:
            await self._end_text(message)
        await self._speaker.put(None)

    async def _open_turn(self) -> Turn:
        assert self._options is not None
        if self._turn is None:
            self._turn = Turn(self._turns, self._options)
            self._turns += 1
            await self._speaker.put(self._turn)
        return self._turn
