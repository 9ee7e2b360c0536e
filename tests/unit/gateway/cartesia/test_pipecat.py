"""An interruption in Pipecat, with its client of Cartesia as it is on PyPI."""

import asyncio
from typing import Any

from pipecat.frames.frames import InterruptionFrame, TTSSpeakFrame, TTSTextFrame
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.tests.utils import run_test

from tests.fakes.gateway import RunningGateway
from tests.fakes.word_server import WordServer
from tests.unit.gateway.conftest import wait_for

TEXT = "One two three four five six seven eight nine ten."
LIMIT_SECONDS = 20


class Listener(BaseObserver):
    """Interrupts with the third word that is heard."""

    def __init__(self, service: CartesiaTTSService) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.is_interrupted = asyncio.Event()
        self._service = service

    async def on_push_frame(self, data: FramePushed) -> None:
        if data.source is not self._service:
            return
        if isinstance(data.frame, TTSTextFrame):
            self.heard.append(data.frame.text)
            if len(self.heard) == 3:
                await self._service.queue_frame(InterruptionFrame())
        elif isinstance(data.frame, InterruptionFrame):
            self.is_interrupted.set()


def test_an_interruption_cancels_the_stream() -> None:
    server = WordServer(hangs_after=8)

    async def run(gateway: RunningGateway) -> list[str]:
        settings = CartesiaTTSService.Settings(voice="ryan")
        url = f"ws://{gateway.address}/tts/websocket"
        service = CartesiaTTSService(api_key="none", url=url, settings=settings, sample_rate=24_000)
        listener = Listener(service)
        frames: list[Any] = [TTSSpeakFrame(TEXT)]
        speaking = asyncio.ensure_future(
            run_test(service, frames_to_send=frames, observers=[listener], send_end_frame=False)
        )
        try:
            await asyncio.wait_for(listener.is_interrupted.wait(), LIMIT_SECONDS)
            # The connection is still open: not its end cancels the stream.
            await asyncio.to_thread(wait_for, lambda: server.servicer.cancelled == 1)
            await asyncio.to_thread(wait_for, lambda: gateway.services.backend.streams == 0)
            assert not speaking.done()
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
        return listener.heard

    with server, RunningGateway(server.url) as gateway:
        heard = asyncio.run(run(gateway))
    assert heard[:3] == ["One", "two", "three"]
    assert len(heard) < 8
