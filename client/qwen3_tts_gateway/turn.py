"""One utterance of a WebSocket session, whose text arrives while it is spoken."""

from dataclasses import dataclass, field

from qwen3_tts_client.pieces import TextFeed
from qwen3_tts_gateway.schema import SessionOptions
from qwen3_tts_gateway.words import WordTimeline


@dataclass
class Turn:
    index: int
    options: SessionOptions
    text: TextFeed = field(default_factory=TextFeed)
    is_cancelled: bool = False
    timeline: WordTimeline = field(init=False)

    def __post_init__(self) -> None:
        self.timeline = WordTimeline(self.options.speed)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.text.end()
