"""Filters and encoder of one utterance, off the event loop where they take long."""

import asyncio
import time
from concurrent.futures import Executor

import numpy as np

from qwen3_tts_client.gateway.audio.encoder import Pcm, make_encoder
from qwen3_tts_client.gateway.audio.filters import make_filters
from qwen3_tts_client.gateway.audio.formats import FORMATS

# Encoding 80 ms takes 0.5 ms; a longer chunk would hold up the other streams.
INLINE_SAMPLES = 1920


class Pipeline:
    def __init__(self, format_name: str, rate: int | None, speed: float | None, executor: Executor) -> None:
        self.rate = rate or FORMATS[format_name].default_rate
        self.busy_s = 0.0
        self._filters = make_filters(speed or 1.0, self.rate)
        self._encoder = make_encoder(format_name, self.rate)
        self._is_cheap = not self._filters and not FORMATS[format_name].codec
        self._executor = executor

    async def encode(self, pcm: Pcm) -> bytes:
        if self._is_cheap or len(pcm) <= INLINE_SAMPLES:
            return self._encode(pcm)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._encode, pcm)

    async def finish(self) -> bytes:
        return self._encode(np.empty(0, np.int16), last=True)

    def _encode(self, pcm: Pcm, last: bool = False) -> bytes:
        start_s = time.perf_counter()
        for step in self._filters:
            pcm = step.process(pcm, last)
        encoded = self._encoder.encode(pcm) if len(pcm) else b""
        if last:
            encoded += self._encoder.finish()
        self.busy_s += time.perf_counter() - start_s
        return encoded
