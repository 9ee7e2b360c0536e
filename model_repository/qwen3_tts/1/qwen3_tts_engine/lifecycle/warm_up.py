"""Speaks and discards a few words, so that the first request is as fast as later ones."""

import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from qwen3_tts_engine.checkpoint.configs import ModelConfig
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core import Sink, Stream
from qwen3_tts_engine.engine import Engine
from qwen3_tts_engine.request import InvalidRequest, RequestError, SynthesisRequest, Unavailable

log = logging.getLogger(__name__)

TEXT, DESIGN = "Hello.", "A calm voice."
FRAMES = 8
# Streams at once, round by round.
ROUNDS = (1, 1, 4)
MakeStream = Callable[[Sink, str], Stream]
"""Of a sink and a key."""


class Silence:
    """A sink that says how its stream ended."""

    def __init__(self) -> None:
        self.error: RequestError | None = None
        self.ended = threading.Event()

    def send(self, pcm: np.ndarray) -> None:
        pass

    def finish(self, error: RequestError | None) -> None:
        self.error = error
        self.ended.set()


def utterance(model: ModelConfig, config: EngineConfig) -> SynthesisRequest | None:
    """What to speak; None for a checkpoint that speaks in the voice of a reference alone."""
    if model.tts_model_type == "base":
        return None
    design = DESIGN if model.tts_model_type == "voice_design" else None
    speaker = None if design else min(model.talker_config.spk_id, default=None)
    frames = min(FRAMES, config.max_frames_limit)
    return SynthesisRequest(text=TEXT, speaker=speaker, instruct=design, seed=0, max_frames=frames)


def speak(engine: Engine, make: MakeStream | None, config: EngineConfig) -> None:
    """Speak the streams that `make` makes. Raises RequestError when an utterance fails; metrics count none of them."""
    if make is None:
        log.info("no warm-up speech: this checkpoint needs a reference voice")
        return
    begun = time.perf_counter()
    try:
        with engine.recorder.paused():
            for count in ROUNDS:
                _speak_at_once(engine, make, min(count, config.max_streams))
    except InvalidRequest as error:
        log.info("no warm-up speech: %s", error)
        return
    log.info("warm-up speech took %.2f s", time.perf_counter() - begun)


def _speak_at_once(engine: Engine, make: MakeStream, count: int) -> None:
    sinks = [Silence() for _ in range(count)]
    for row, sink in enumerate(sinks):
        try:
            engine.submit(make(sink, f"warm-up {row}"))
        except Unavailable as error:
            sink.finish(error)
    for sink in sinks:
        sink.ended.wait()
        # With `overload: refuse` a slow machine may turn some of them away.
        if sink.error and not (engine.is_alive and isinstance(sink.error, Unavailable)):
            raise sink.error
