"""The engine without Triton: the codes that it makes of requests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qwen3_tts_engine.checkpoint import Checkpoint
from qwen3_tts_engine.chunker import Chunks
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.prompt import PromptBuilder
from qwen3_tts_engine.request import RequestError, SynthesisRequest
from qwen3_tts_engine.startup import build_engine, load_runner
from qwen3_tts_engine.voice import Voice
from tests.fakes.scripted import Listener, scripted_pcm

WAIT = 120.0
CPU = torch.device("cpu")


class CodeRecorder:
    """A codec client that keeps every stream's codes."""

    def __init__(self) -> None:
        self.codes: dict[str, list[np.ndarray]] = {}

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        for stream, codes, count in zip(chunks.streams, chunks.codes, chunks.counts, strict=True):
            self.codes.setdefault(stream.key, []).append(codes[:count])
        return scripted_pcm(chunks.codes), {}


def synthesise(
    folder: Path, requests: list[dict[str, Any]], voices: Sequence[Voice | None] = (), **settings: Any
) -> list[np.ndarray]:
    """Codes [frames, 16] of each request, all in flight at once; `voices` are those of a Base checkpoint's requests."""
    checkpoint = Checkpoint.open(str(folder))
    config = EngineConfig(checkpoint=str(folder), max_streams=8, max_text_tokens=256, max_frames_limit=512, **settings)
    recorder = CodeRecorder()
    runner = load_runner(checkpoint, config, CPU)
    engine = build_engine(config, PromptBuilder(checkpoint, config), runner, recorder)
    listeners = [Listener() for _ in requests]
    for index, (request, listener, voice) in enumerate(
        zip(requests, listeners, voices or [None] * len(requests), strict=True)
    ):
        asked = SynthesisRequest.of(request)
        engine.submit(asked.in_voice(voice) if voice else asked, listener, str(index))
    engine.start()
    assert all(listener.ended.wait(WAIT) and listener.error is None for listener in listeners)
    engine.scheduler.check_integrity()
    engine.close()
    return [np.concatenate(recorder.codes[str(index)]) for index in range(len(requests))]
