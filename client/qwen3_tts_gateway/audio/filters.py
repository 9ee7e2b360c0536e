"""Filters between the model's PCM and the encoder: tempo and sample rate."""

import math
from typing import Protocol

import av
import numpy as np
import soxr
from av.filter import Graph

from qwen3_tts_gateway.audio.encoder import Pcm
from qwen3_tts_gateway.audio.formats import NATIVE_RATE

MIN_TEMPO = 0.5  # of one atempo filter


class Filter(Protocol):
    def process(self, pcm: Pcm, last: bool = False) -> Pcm:
        """Returns what is ready; with `last`, everything."""


def make_filters(speed: float, rate: int) -> list[Filter]:
    filters: list[Filter] = []
    if speed != 1:
        filters.append(Tempo(speed))
    if rate != NATIVE_RATE:
        filters.append(Resampler(rate))
    return filters


class Resampler:
    def __init__(self, rate: int) -> None:
        self._stream = soxr.ResampleStream(NATIVE_RATE, rate, 1, dtype="int16", quality="HQ")

    def process(self, pcm: Pcm, last: bool = False) -> Pcm:
        resampled: Pcm = self._stream.resample_chunk(pcm, last=last)
        return resampled


class Tempo:
    """libavfilter's atempo: another speed at the same pitch."""

    def __init__(self, speed: float) -> None:
        stages = 1 if speed >= MIN_TEMPO else math.ceil(math.log(speed, MIN_TEMPO))
        self._graph = Graph()
        nodes = [self._graph.add_abuffer(sample_rate=NATIVE_RATE, format="s16", layout="mono")]
        nodes += [self._graph.add("atempo", f"{speed ** (1 / stages):.6f}") for _ in range(stages)]
        nodes.append(self._graph.add("abuffersink"))
        self._graph.link_nodes(*nodes).configure()
        self._samples = 0

    def process(self, pcm: Pcm, last: bool = False) -> Pcm:
        if len(pcm):
            frame = av.AudioFrame.from_ndarray(pcm[np.newaxis], format="s16", layout="mono")
            frame.sample_rate, frame.pts = NATIVE_RATE, self._samples
            self._samples += len(pcm)
            self._graph.push(frame)
        if last:
            self._graph.push(None)
        return self._ready()

    def _ready(self) -> Pcm:
        parts: list[Pcm] = []
        while True:
            try:
                parts.append(self._graph.pull().to_ndarray()[0])
            except (av.BlockingIOError, av.EOFError):
                return np.concatenate(parts) if parts else np.empty(0, np.int16)
