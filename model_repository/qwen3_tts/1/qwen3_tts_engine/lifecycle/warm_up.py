"""Speaks and discards a few words, so that the first request is as fast as later ones."""

import logging
import threading
import time
from collections.abc import Callable, Collection

import numpy as np

from qwen3_tts_engine.checkpoint.configs import ModelConfig
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.streams import Sink, Stream, Summary
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.request import InvalidRequest, RequestError, SynthesisRequest, Unavailable

log = logging.getLogger(__name__)

TEXT, DESIGN = "Hello.", "A calm voice."
FRAMES = 8
# Concurrent streams of each round. Large ones teach the scheduler what prompts cost; a machine on which a round takes
# longer than ROUND_SECONDS learns that from its requests.
ROUNDS = (1, 1, 4, 16, 64)
ROUND_SECONDS = 0.25
MakeStream = Callable[[Sink, str], Stream]
"""Creates a stream from a sink and a key."""


class DiscardSink:
    """A sink that discards audio and records the outcome."""

    def __init__(self) -> None:
        self.error: RequestError | None = None
        self.ended = threading.Event()

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None:
        pass

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None:
        self.error = error
        self.ended.set()


def utterance(model: ModelConfig, config: EngineConfig) -> SynthesisRequest | None:
    """The warm-up request; None for a checkpoint that requires a reference voice."""
    if model.tts_model_type == "base":
        return None
    design = DESIGN if model.tts_model_type == "voice_design" else None
    speaker = None if design else min(model.talker_config.spk_id, default=None)
    frames = min(FRAMES, config.max_frames_limit)
    return SynthesisRequest(text=TEXT, speaker=speaker, instruct=design, seed=0, max_frames=frames)


def speak(engine: Engine, make: MakeStream | None, config: EngineConfig) -> None:
    """Speak streams from `make`, without metrics. Raises RequestError when an utterance fails."""
    if make is None:
        log.info("no warm-up speech: this checkpoint requires a reference voice")
        return
    started = time.perf_counter()
    try:
        with engine.recorder.paused():
            for count in ROUNDS:
                begun = time.perf_counter()
                _speak_concurrently(engine, make, min(count, config.max_streams))
                if time.perf_counter() - begun > ROUND_SECONDS:
                    break
    except InvalidRequest as error:
        log.info("no warm-up speech: %s", error)
        return
    log.info("warm-up speech took %.2f s", time.perf_counter() - started)


def _speak_concurrently(engine: Engine, make: MakeStream, count: int) -> None:
    sinks = [DiscardSink() for _ in range(count)]
    for row, sink in enumerate(sinks):
        try:
            engine.submit(make(sink, f"warm-up {row}"))
        except Unavailable as error:
            sink.finish(error)
    for sink in sinks:
        sink.ended.wait()
        # With `overload: refuse` a slow machine may refuse some of them.
        if sink.error and not (engine.is_alive and isinstance(sink.error, Unavailable)):
            raise sink.error
