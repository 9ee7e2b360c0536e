"""One Wyoming connection: events in, speech out."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, TypeAlias

from tritonclient.grpc import service_pb2
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe
from wyoming.server import AsyncEventHandler
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

from qwen3_tts_client.errors import SpeechError, public_message
from qwen3_tts_client.pieces import TextFeed, sequence
from qwen3_tts_client.protocol import SAMPLE_RATE, SpeechRequest, encode
from qwen3_tts_client.stream import speak
from qwen3_tts_gateway.wyoming.voice_server import VoiceServer

Message: TypeAlias = service_pb2.ModelInferRequest
SAMPLE_BYTES = 2
_log = logging.getLogger(__name__)


class SpeechHandler(AsyncEventHandler):
    """Reads on while it speaks, so that a disconnect cancels the stream at once."""

    def __init__(self, server: VoiceServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._server = server
        self._text: TextFeed | None = None  # while text is streamed
        self._speaking: asyncio.Task[None] | None = None

    async def handle_event(self, event: Event) -> bool:
        """Returns False to close the connection."""
        try:
            await self._handle(event)
        except (SpeechError, ValueError, KeyError) as error:
            await self._refuse(error)
            return False
        return True

    async def disconnect(self) -> None:
        if self._speaking is not None:
            self._speaking.cancel()
            await asyncio.gather(self._speaking, return_exceptions=True)

    async def _handle(self, event: Event) -> None:
        if Describe.is_type(event.type):
            catalogue = await self._server.catalogue()
            await self.write_event(catalogue.info().event())
        elif SynthesizeStart.is_type(event.type):
            await self._start_text(SynthesizeStart.from_event(event))
        elif SynthesizeChunk.is_type(event.type):
            self._add_text(SynthesizeChunk.from_event(event).text)
        elif SynthesizeStop.is_type(event.type):
            self._end_text()
        elif Synthesize.is_type(event.type) and self._text is None:
            # While text is streamed, the event repeats all of it for servers that do not stream.
            await self._speak_text(Synthesize.from_event(event))

    async def _speak_text(self, event: Synthesize) -> None:
        request = await self._server.request(event, event.text)
        await self._begin(self._send_audio([encode(request, self._server.model)]))

    async def _start_text(self, event: SynthesizeStart) -> None:
        self._end_text()
        request = await self._server.request(event, "")
        self._text = TextFeed()
        await self._begin(self._send_streamed(request, self._text))

    def _add_text(self, text: str) -> None:
        if self._text is not None and text:
            self._text.append(text)

    def _end_text(self) -> None:
        if self._text is not None:
            self._text.end()
        self._text = None

    async def _begin(self, utterance: Coroutine[Any, Any, None]) -> None:
        """One utterance after the other."""
        if self._speaking is not None:
            await self._speaking
        self._speaking = asyncio.ensure_future(self._speak(utterance))

    async def _speak(self, utterance: Coroutine[Any, Any, None]) -> None:
        try:
            await utterance
        except SpeechError as error:
            await self._refuse(error)
            self.writer.close()
        except ConnectionError:
            pass  # the client left; reading notices it as well

    async def _send_streamed(self, request: SpeechRequest, text: TextFeed) -> None:
        # No timeout runs until the first words are there.
        if await text.begins():
            await self._send_audio(sequence(request, self._server.model, "", text))
        await self.write_event(SynthesizeStopped().event())

    async def _send_audio(self, messages: Iterable[Message] | AsyncIterable[Message]) -> None:
        rate = SAMPLE_RATE
        is_started = False
        async with aclosing(speak(self._server.stub, messages, self._server.timeouts)) as stream:
            async for _, chunk in stream:
                rate = chunk.sample_rate or rate
                if not is_started:
                    await self.write_event(AudioStart(rate, SAMPLE_BYTES, 1).event())
                    is_started = True
                await self.write_event(AudioChunk(rate, SAMPLE_BYTES, 1, chunk.pcm.astype("<i2").tobytes()).event())
        if not is_started:
            await self.write_event(AudioStart(rate, SAMPLE_BYTES, 1).event())
        await self.write_event(AudioStop().event())

    async def _refuse(self, error: Exception) -> None:
        _log.warning("%s", error)
        message, code = str(error), "invalid"
        if isinstance(error, SpeechError):
            message, code = public_message(error), error.outcome
        with contextlib.suppress(ConnectionError):
            await self.write_event(Error(message, code).event())
