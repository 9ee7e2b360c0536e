"""Streamed text on an event loop."""

import secrets
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import replace

from tritonclient.grpc import service_pb2

from qwen3_tts_client.protocol import MORE_TEXT, SpeechRequest, TextPiece, encode


async def sequence(
    request: SpeechRequest, model: str, request_id: str, text: AsyncIterable[str]
) -> AsyncIterator[service_pb2.ModelInferRequest]:
    """One request for each piece of text, all of one Triton sequence; a last one without text ends it."""
    sequence_id = secrets.randbits(63) | 1
    fields, is_first = request, True
    async for piece in text:
        position = TextPiece(sequence_id, start=is_first, end=False)
        yield encode(replace(fields, text=piece), model, request_id if is_first else MORE_TEXT, position)
        fields, is_first = SpeechRequest(""), False
    last = TextPiece(sequence_id, start=is_first, end=True)
    yield encode(replace(fields, text=""), model, request_id if is_first else MORE_TEXT, last)
