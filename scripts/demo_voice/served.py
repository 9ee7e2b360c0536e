"""Speaks through a running server."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client import pieces
from qwen3_tts_client.protocol import MODEL_NAME, SpeechRequest, encode, merged
from qwen3_tts_client.stream import CHANNEL_OPTIONS, Responses, Timeouts
from qwen3_tts_client.sync_stream import speak

WORD_SECONDS = 0.2
# A long text may take minutes.
TIMEOUTS = Timeouts(stream_s=1800)


@dataclass(frozen=True)
class Heard:
    """An utterance as it was received: samples int16 [samples], why it ended, and its words (docs/api.md)."""

    samples: np.ndarray
    finish_reason: str | None
    words: list[dict[str, Any]] = field(default_factory=list)


class ServedVoice:
    """Callers of the server at `url`; `streams` of them speak at a time."""

    def __init__(self, url: str, streams: int) -> None:
        self._url, self._streams = url, streams

    def __call__(self, requests: Sequence[SpeechRequest], by_words: bool = False) -> list[Heard]:
        """The utterances of `requests`; `by_words` sends a word of a text every 200 ms. Raises SpeechError."""
        with grpc.insecure_channel(self._url, CHANNEL_OPTIONS) as channel, ThreadPoolExecutor(self._streams) as pool:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return list(pool.map(lambda request: _hear(stub, request, by_words), requests))


def _hear(stub: service_pb2_grpc.GRPCInferenceServiceStub, request: SpeechRequest, by_words: bool) -> Heard:
    responses = Responses()
    messages = _words(request) if by_words else iter([encode(request)])
    pcm, words = [np.zeros(0, np.int16)], list[dict[str, Any]]()
    for _, chunk in speak(stub, messages, TIMEOUTS, responses):
        pcm.append(chunk.pcm)
        words += chunk.words
    assert responses.end is not None
    return Heard(np.concatenate(pcm), responses.end.finish_reason, merged([*words, *responses.end.words]))


def _words(request: SpeechRequest) -> Iterator[service_pb2.ModelInferRequest]:
    sequence = pieces.Sequence(request, MODEL_NAME)
    for word in request.text.split():
        yield sequence.add(f"{word} ")
        time.sleep(WORD_SECONDS)
    yield sequence.end()
