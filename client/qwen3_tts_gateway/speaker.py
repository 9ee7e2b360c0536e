"""Speaks the turns of a WebSocket session, one after the other."""

import asyncio
import base64
from collections import deque
from typing import Any

from starlette.websockets import WebSocket

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_gateway.access import Key
from qwen3_tts_gateway.audio.encoder import complete
from qwen3_tts_gateway.backend import Speech
from qwen3_tts_gateway.body import ending
from qwen3_tts_gateway.errors import APIError, from_speech
from qwen3_tts_gateway.log import Exchange, exchange_of, record
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.turn import Turn
from qwen3_tts_gateway.utterance import speak_pieces
from qwen3_tts_gateway.words import Word, Words, milliseconds

# Turns that wait; the session reads no further message while the queue is full.
MAX_TURNS = 8


class Speaker:
    def __init__(self, services: Services, websocket: WebSocket, key: Key) -> None:
        self._services = services
        self._websocket = websocket
        self._key = key
        self._queue: asyncio.Queue[Turn | None] = asyncio.Queue(MAX_TURNS)
        self._turns: list[Turn] = []  # not yet reported as done
        self._done: deque[Turn] = deque(maxlen=MAX_TURNS)  # that a client may still play
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._turns

    async def put(self, turn: Turn | None) -> None:
        """None closes the connection after the turns before it."""
        if turn is not None:
            self._turns.append(turn)
        await self._queue.put(turn)

    def turn(self, index: int | None) -> Turn | None:
        """A recent turn; None: the last one whose audio has begun."""
        if index is None:
            begun = [turn for turn in (*self._done, *self._turns) if turn.is_begun]
            return begun[-1] if begun else None
        return next((turn for turn in (*self._done, *self._turns) if turn.index == index), None)

    def cancel(self) -> None:
        """Silences the current turn at once, and those that wait."""
        for turn in self._turns:
            turn.cancel()
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        while (turn := await self._queue.get()) is not None:
            self._task = asyncio.ensure_future(self._speak(turn))
            try:
                await asyncio.wait((self._task,))
            finally:
                self._task.cancel()
            if self._task.cancelled() and not turn.is_cancelled:
                raise asyncio.CancelledError
            if not self._task.cancelled():
                self._task.result()
            self._task = None
            await self._report_done(turn)
            self._turns.remove(turn)
            self._done.append(turn)
        await self._websocket.close()

    async def send_error(self, error: APIError, **fields: Any) -> None:
        await self._websocket.send_json(error.body | {"type": "error"} | fields)

    async def _report_done(self, turn: Turn) -> None:
        cancelled = {"cancelled": True} if turn.is_cancelled else {}
        sentences = 1 if turn.text.pieces and not turn.is_cancelled else 0
        done = {"type": "session.done", "utterance_index": turn.index, "total_sentences": sentences}
        await self._websocket.send_json(done | cancelled)

    async def _speak(self, turn: Turn) -> None:
        if turn.is_cancelled:
            return
        exchange = self._exchange(turn)
        try:
            await self._speak_logged(turn, exchange)
            exchange.outcome = exchange.outcome or "ok"
        except asyncio.CancelledError:
            exchange.outcome = "cancelled"
            raise
        finally:
            record(exchange, self._services.metrics)

    async def _speak_logged(self, turn: Turn, exchange: Exchange) -> None:
        if not await turn.text.begins():
            return
        output = Output(self._websocket, turn, exchange)
        try:
            with self._services.access.stream(self._key):
                await speak_pieces(self._services, turn.options, turn.text, turn.timeline, exchange, output)
        except asyncio.CancelledError:
            if turn.is_cancelled:
                await output.cancel()
            raise
        except SpeechError as error:
            refused = from_speech(error, turn.options.tensor_fields)
            exchange.outcome, exchange.error = error.outcome, refused.detail
            await self.send_error(refused, utterance_index=turn.index)
            await output.fail()
        except APIError as error:
            exchange.outcome = "refused"
            await self.send_error(error, utterance_index=turn.index)
            await output.fail()

    def _exchange(self, turn: Turn) -> Exchange:
        """The log record of one turn."""
        session = exchange_of(self._websocket.scope)
        request_id = f"{session.request_id}-{turn.index}"
        return Exchange(
            request_id, session.path, "WS", session.trace, key=self._key.name, format=turn.options.response_format
        )


class Output:
    """The messages about one turn: audio.start, audio and words, audio.done."""

    def __init__(self, websocket: WebSocket, turn: Turn, exchange: Exchange) -> None:
        self._websocket = websocket
        self._turn = turn
        self._exchange = exchange
        self._held = bytearray()  # without stream_audio, until the end
        self._told: list[Word] = []  # since the last audio.chunk
        self._chunks = 0
        self._total_bytes = 0
        self._rate = 0  # Hz

    async def audio(self, encoded: bytes, rate: int) -> None:
        if self._turn.options.stream_audio:
            await self._start(sample_rate=rate, channels=1)
            await self._send_audio(encoded, rate)
            self._exchange.first_byte_ms = self._exchange.first_byte_ms or self._exchange.elapsed_ms()
        else:
            self._held += encoded
        self._total_bytes += len(encoded)

    async def words(self, words: Words, rate: int) -> None:
        self._rate = rate
        await self._start(**({"sample_rate": rate, "channels": 1} if self._turn.options.stream_audio else {}))
        if self._turn.options.has_audio_chunks:
            self._told += words
        else:
            await self._send("audio.words", words=words)

    async def done(self, speech: Speech) -> None:
        await self._start()
        if self._told:
            await self._send_audio(b"", self._rate)
        if self._held:
            await self._websocket.send_bytes(complete(self._turn.options.response_format, bytes(self._held)))
        await self._send("audio.done", total_bytes=self._total_bytes, error=False, **ending(speech))

    async def fail(self) -> None:
        await self._start()
        await self._send("audio.done", total_bytes=self._total_bytes, error=True)

    async def cancel(self) -> None:
        """Ends audio that the client has cancelled, if any was announced."""
        if self._turn.is_begun:
            await self._send("audio.done", total_bytes=self._total_bytes, error=False, cancelled=True)

    async def _send_audio(self, encoded: bytes, rate: int) -> None:
        if not self._turn.options.has_audio_chunks:
            await self._websocket.send_bytes(encoded)
            return
        ends = {"start": self._total_bytes, "end": self._total_bytes + len(encoded)}
        times = {f"chunk_{name}_ms": round(count / 2 / rate * 1000) for name, count in ends.items()}
        timestamps, self._told = milliseconds(self._told) or None, []
        audio = base64.b64encode(encoded).decode()
        fields = {"sample_rate": rate, "channels": 1, "audio_b64": audio, "timestamps": timestamps}
        await self._send("audio.chunk", chunk_id=self._chunks, **times, **fields)
        self._chunks += 1

    async def _start(self, **fields: Any) -> None:
        if not self._turn.is_begun:
            self._turn.is_begun = True
            text = "".join(self._turn.text.pieces)
            await self._send("audio.start", sentence_text=text, format=self._turn.options.response_format, **fields)

    async def _send(self, kind: str, **fields: Any) -> None:
        position = {"type": kind, "utterance_index": self._turn.index, "sentence_index": 0}
        await self._websocket.send_json(position | fields)
