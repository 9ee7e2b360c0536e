"""POST /tts/bytes: a whole text of Cartesia's clients, whose audio streams back."""

from typing import Any

from qwen3_tts_gateway.cartesia.schema import CartesiaBody, parse_generation
from qwen3_tts_gateway.speech import SpeechEndpoint


class CartesiaEndpoint(SpeechEndpoint):
    def _body(self, content: Any) -> CartesiaBody:
        return parse_generation(content).body()
