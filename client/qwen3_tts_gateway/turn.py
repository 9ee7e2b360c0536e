"""One utterance of a WebSocket session, whose text arrives while it is spoken."""

from dataclasses import dataclass, field

from qwen3_tts_client.pieces import TextFeed
from qwen3_tts_gateway.schema import SessionOptions


@dataclass
class Turn:
    index: int
    options: SessionOptions
    text: TextFeed = field(default_factory=TextFeed)
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.text.end()
