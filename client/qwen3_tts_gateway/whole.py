"""Responses that are sent once all audio is there, with the times of its words."""

import base64
import json

from starlette.responses import JSONResponse

from qwen3_tts_gateway.audio.encoder import WAV_HEADER_BYTES
from qwen3_tts_gateway.backend import Speech
from qwen3_tts_gateway.body import ending
from qwen3_tts_gateway.words import WordTimeline, milliseconds

# vllm-omni's limit, since servers and proxies refuse large headers.
MAX_HEADER_BYTES = 4096


def verbose_response(wav: bytes, rate: int, timeline: WordTimeline, speech: Speech) -> JSONResponse:
    """response_format verbose_json: `wav` in base64."""
    return JSONResponse(
        {
            "audio": base64.b64encode(wav).decode(),
            "format": "wav",
            "sample_rate": rate,
            "duration": round((len(wav) - WAV_HEADER_BYTES) / 2 / rate, 3),
            "words": timeline.words,
            **ending(speech),
        }
    )


def word_headers(timeline: WordTimeline) -> dict[str, str]:
    """vllm-omni's headers for word_timestamps."""
    words = json.dumps(milliseconds(timeline.words))
    return {"x-word-timestamps": words} if len(words) <= MAX_HEADER_BYTES else {"x-word-timestamps-omitted": "true"}
