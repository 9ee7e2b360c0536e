"""Filters and encoder of one utterance, off the event loop where they take long."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from qwen3_tts_gateway.audio.encoder import Pcm, make_encoder
from qwen3_tts_gateway.audio.filters import make_filters
from qwen3_tts_gateway.audio.formats import FORMATS, NATIVE_RATE
from qwen3_tts_gateway.audio.turns import Turns

# Encoding 80 ms takes 0.3 ms; a longer chunk would hold up the other streams.
INLINE_SAMPLES = 1920
# Long chunks are encoded in pieces, so that streams take turns and no listener waits for the long chunks of others.
PIECE_SAMPLES = 4 * 1920
NICE = 5


class Encoders:
    """Threads that encode what is needed first, and leave the CPU to the event loop when it is busy."""

    def __init__(self, threads: int) -> None:
        self.executor = ThreadPoolExecutor(threads, "encoder", _be_nice)
        self.turns = Turns(threads)


def _be_nice() -> None:
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


class Pipeline:
    def __init__(self, format_name: str, rate: int | None, speed: float | None, encoders: Encoders) -> None:
        self.rate = rate or FORMATS[format_name].default_rate
        self._seconds_per_sample = 1 / (NATIVE_RATE * (speed or 1.0))
        # When a listener who began to play at once has heard all that is encoded.
        self._due = time.monotonic()
        self.busy_s = 0.0
        self._filters = make_filters(speed or 1.0, self.rate)
        self._encoder = make_encoder(format_name, self.rate)
        self._is_cheap = not self._filters and not FORMATS[format_name].codec
        self._encoders = encoders

    async def encode(self, pcm: Pcm) -> AsyncIterator[bytes]:
        """Yields what is ready, in order."""
        if self._is_cheap or len(pcm) <= INLINE_SAMPLES:
            self._extend(pcm)
            yield self._encode(pcm)
            return
        loop = asyncio.get_running_loop()
        for start in range(0, len(pcm), PIECE_SAMPLES):
            piece = pcm[start : start + PIECE_SAMPLES]
            async with self._encoders.turns.turn(self._due):
                encoded = await loop.run_in_executor(self._encoders.executor, self._encode, piece)
            self._extend(piece)
            yield encoded

    def finish(self) -> bytes:
        return self._encode(np.empty(0, np.int16), last=True)

    def _extend(self, pcm: Pcm) -> None:
        self._due = max(self._due, time.monotonic()) + len(pcm) * self._seconds_per_sample

    def _encode(self, pcm: Pcm, last: bool = False) -> bytes:
        start_s = time.perf_counter()
        for step in self._filters:
            pcm = step.process(pcm, last)
        encoded = self._encoder.encode(pcm) if len(pcm) else b""
        if last:
            encoded += self._encoder.finish()
        self.busy_s += time.perf_counter() - start_s
        return encoded
