# ruff: noqa: N802 - gRPC names the methods
"""A stub server that speaks a word every 160 ms and tells when each begins and ends.

A word begins with its own chunk and has ended with the next one, or with the last response. The time of one that is in
`unknown` is null.
"""

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator, Collection
from typing import Any

import numpy as np

from tests.fakes.stub_server import (
    AMPLITUDE,
    StubServer,
    StubServicer,
    audio_response,
    final_response,
    input_text,
    is_more_text,
    text_of,
    too_long,
    voice_response,
)

WORD_SAMPLES = 2 * 1920
SPOKEN_SAMPLES = 3360  # the rest of a word's chunk is a pause
REFUSAL = "INVALID_ARG: word_times: True: requires attention heads that follow the text, in the layout full: none"


class WordServicer(StubServicer):
    has_heads = True
    unknown: Collection[str] = ()
    hangs_after: int | None = None  # words
    hanging = 0  # streams: a cancel is counted once a stream hangs, but not while it sends

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        text, is_asked = "", False
        self.running += 1
        try:
            async for request in requests:
                self.received.append(request)
                if operation := input_text(request, "operation"):
                    yield voice_response(self.voices, self.task, self.speakers, operation, input_text(request, "voice"))
                    continue
                if is_more_text(request):
                    yield final_response(request.id)
                text += text_of(request)
                is_asked |= "word_times" in [tensor.name for tensor in request.inputs]
                if "sequence_end" in request.parameters and not request.parameters["sequence_end"].bool_param:
                    continue
                async for response in self._spoken(text, is_asked):
                    yield response
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _spoken(self, text: str, is_asked: bool) -> AsyncIterator[Any]:
        if is_asked and not self.has_heads:
            yield service_error(REFUSAL)
            return
        if len(text) > self.max_characters:
            yield too_long(text, self.max_characters)
            return
        ended: list[dict[str, Any]] = []
        for index, match in enumerate(re.finditer(r"\S+", text)):
            if index == self.hangs_after:
                self.hanging += 1
                await asyncio.Event().wait()
            response = audio_response(np.full(WORD_SAMPLES, AMPLITUDE, np.int16), first=index == 0)
            is_known, start = match[0] not in self.unknown, index * WORD_SAMPLES
            begun = {"index": index, "word": match[0], "first": match.start(), "last": match.end() - 1}
            begun["start"] = start if is_known else None
            if is_asked:
                add_words(response, [*ended, begun])
            ended = [{"index": index, "end": start + SPOKEN_SAMPLES if is_known else None}]
            yield response
        final = final_response(usage=(2 * (index + 1), 7, 20, 0))
        if is_asked:
            add_words(final, ended)
            final.infer_response.outputs.add(name="spoken_share", datatype="FP32", shape=[1])
            final.infer_response.raw_output_contents.append(struct.pack("<f", 1.0))
        yield final


def service_error(message: str) -> Any:
    response = final_response()
    response.Clear()
    response.error_message = message
    return response


def add_words(response: Any, words: list[dict[str, Any]]) -> None:
    texts = [json.dumps(word).encode() for word in words]
    response.infer_response.outputs.add(name="words", datatype="BYTES", shape=[len(texts)])
    response.infer_response.raw_output_contents.append(b"".join(struct.pack("<I", len(text)) + text for text in texts))


class WordServer(StubServer):
    servicer: WordServicer

    def __init__(self, **servicer: Any) -> None:
        """`servicer` are attributes of the servicer."""
        super().__init__()
        self.servicer = WordServicer(10, True, ("qwen3_tts",), None, "CustomVoice")
        for name, value in servicer.items():
            setattr(self.servicer, name, value)
