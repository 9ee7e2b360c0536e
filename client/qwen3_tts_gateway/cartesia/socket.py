"""WS /tts/websocket: Cartesia's protocol, as far as the clients of Pipecat and LiveKit use it."""

import asyncio
import uuid

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from qwen3_tts_gateway.access import Key
from qwen3_tts_gateway.cartesia.context import Context, send_error
from qwen3_tts_gateway.cartesia.schema import Generation, parse_generation
from qwen3_tts_gateway.errors import APIError, refusal
from qwen3_tts_gateway.log import Exchange, exchange_of
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.sockets import GONE, POLICY_VIOLATION, idle_error, parse_json, receive
from qwen3_tts_gateway.tensors import check_length, is_unicode

# Cartesia's five minutes, after which its clients reconnect, and some time for those that count from a message.
IDLE_SECONDS = 330.0


class CartesiaSocket:
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
        await websocket.accept()
        await _Connection(self._services, websocket, key).run()


class _Connection:
    """Speaks the contexts of a client beside each other."""

    def __init__(self, services: Services, websocket: WebSocket, key: Key) -> None:
        self._services = services
        self._websocket = websocket
        self._key = key
        self._contexts: dict[str, Context] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()
        self._count = 0

    async def run(self) -> None:
        """A context that crashes ends the connection."""
        try:
            async with self._group:
                await self._read()
        except* GONE:
            pass

    async def _read(self) -> None:
        """Returns when the client is to be disconnected. Raises WebSocketDisconnect."""
        while True:
            try:
                message = await receive(self._websocket, IDLE_SECONDS, lambda: not self._tasks)
            except TimeoutError:
                await send_error(self._websocket, idle_error(IDLE_SECONDS), None)
                await self._websocket.close(POLICY_VIOLATION)
                return
            content = None
            try:
                content = parse_json(message)
                await self._handle(parse_generation(content))
            except APIError as error:
                await send_error(self._websocket, error, _context_id(content))

    async def _handle(self, generation: Generation) -> None:
        """Raises APIError."""
        context_id = generation.context_id or uuid.uuid4().hex
        if generation.cancel:
            self._cancel(context_id)
            return
        text, context = generation.transcript, self._contexts.get(context_id)
        if not is_unicode(text):
            raise APIError(400, "transcript: half of a surrogate pair", "transcript")
        if context and context.text.is_ended:
            raise APIError(400, f"context_id: {context_id!r}: its text has ended; choose another one", "context_id")
        characters = len(text) + (context.text.characters if context else 0)
        check_length(characters, self._services.settings.max_input_characters, "transcript")
        context = context or Context(generation, self._websocket, context_id)
        await self._services.access.spend_characters(self._key, len(text))
        context.add(generation)
        if context_id not in self._contexts:
            self._start(context, context_id)

    def _start(self, context: Context, context_id: str) -> None:
        session = exchange_of(self._websocket.scope)
        exchange = Exchange(f"{session.request_id}-{self._count}", session.path, "WS", session.trace)
        self._count += 1
        self._contexts[context_id] = context
        task = self._group.create_task(context.speak(self._services, self._key, exchange))
        self._tasks[context_id] = task
        task.add_done_callback(lambda _: self._forget(context_id, task))

    def _cancel(self, context_id: str) -> None:
        """Silences a context at once; the client expects no answer."""
        if task := self._tasks.get(context_id):
            task.cancel()
            self._forget(context_id, task)

    def _forget(self, context_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(context_id) is task:
            del self._tasks[context_id], self._contexts[context_id]


def _context_id(content: object) -> str | None:
    found = content.get("context_id") if isinstance(content, dict) else None
    return found if isinstance(found, str) else None
