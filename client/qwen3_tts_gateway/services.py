"""What the endpoints share, made once for each process."""

from qwen3_tts_client.stream import Timeouts
from qwen3_tts_gateway.access import Access
from qwen3_tts_gateway.audio.pipeline import Encoders
from qwen3_tts_gateway.backend import Backend
from qwen3_tts_gateway.config import Settings
from qwen3_tts_gateway.metrics import Metrics
from qwen3_tts_gateway.models import Models
from qwen3_tts_gateway.tensors import RequestBuilder


class Services:
    """Made on the event loop, which its gRPC channels belong to."""

    def __init__(self, settings: Settings, access: Access, metrics: Metrics) -> None:
        self.settings = settings
        self.access = access
        self.metrics = metrics
        self.encoders = Encoders(settings.encoder_threads)
        timeouts = Timeouts(settings.request_seconds, settings.chunk_seconds)
        self.backend = Backend(settings.servers, settings.connections, timeouts)
        self.models = Models(settings, self.backend)
        self.builder = RequestBuilder(settings, self.models, self.encoders.executor)
        metrics.streams.set_function(lambda: self.backend.streams)

    async def close(self) -> None:
        await self.backend.close()
        self.encoders.executor.shutdown(wait=False)
