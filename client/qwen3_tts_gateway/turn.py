"""One utterance of a WebSocket session, whose text arrives while it is spoken."""

from dataclasses import dataclass, field
from typing import Any

from qwen3_tts_client.pieces import TextFeed
from qwen3_tts_gateway.schema import SessionOptions
from qwen3_tts_gateway.words import WordTimeline


@dataclass
class Turn:
    index: int
    options: SessionOptions
    text: TextFeed = field(default_factory=TextFeed)
    is_cancelled: bool = False
    is_begun: bool = False  # its audio was announced
    timeline: WordTimeline = field(init=False)

    def __post_init__(self) -> None:
        self.timeline = WordTimeline(self.options.speed)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.text.end()

    def heard(self, played_ms: float) -> dict[str, Any]:
        """The text that a listener has heard; null where that is not known."""
        characters = self.timeline.heard_characters(played_ms / 1000) if self.options.words_field else None
        text = None if characters is None else "".join(self.text.pieces)[:characters]
        return {"played_ms": played_ms, "heard_characters": characters, "heard_text": text}
