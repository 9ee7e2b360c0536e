"""The Triton server behind all connections."""

import asyncio

import grpc.aio
from tritonclient.grpc import service_pb2_grpc
from wyoming.tts import Synthesize, SynthesizeStart, SynthesizeTextFormat

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import SpeechRequest
from qwen3_tts_client.server import Server
from qwen3_tts_client.stream import CHANNEL_OPTIONS, Timeouts
from qwen3_tts_gateway.wyoming.catalogue import Catalogue


class VoiceServer:
    """Made on the event loop, which its channel belongs to. `voice` and `instruct` are defaults."""

    def __init__(self, server: Server, timeouts: Timeouts, voice: str | None, instruct: str | None) -> None:
        self.model = server.model_name
        self.timeouts = timeouts
        self._server = server
        self._voice = voice
        self._instruct = instruct
        self._known: Catalogue | None = None
        self._channel = grpc.aio.insecure_channel(server.url, options=CHANNEL_OPTIONS)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def catalogue(self) -> Catalogue:
        """Asks the server each time, as voices come and go. Raises SpeechError."""
        self._known = await asyncio.to_thread(Catalogue.ask, self._server)
        return self._known

    async def request(self, event: Synthesize | SynthesizeStart, text: str) -> SpeechRequest:
        """Raises SpeechError."""
        if event.text_format == SynthesizeTextFormat.SSML:
            raise SpeechError("invalid", "text_format: SSML is not supported")
        catalogue = self._known or await self.catalogue()
        return SpeechRequest(text, instruct=self._instruct, **catalogue.fields(event.voice, self._voice))

    async def close(self) -> None:
        await self._channel.close()
