"""Runs the engine without Triton and records the codes of each stream."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.frontend.sequences import Sequences
from qwen3_tts_engine.request import RequestError, SynthesisRequest
from qwen3_tts_engine.startup import build_engine
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.voice import Voice
from tests.fakes.scripted import Listener, scripted_pcm

WAIT = 120.0
CPU = torch.device("cpu")


class CodeRecorder:
    """A codec client that records the codes of every stream."""

    max_calls = 1

    def __init__(self) -> None:
        self.codes: dict[str, list[np.ndarray]] = {}

    def announce(self) -> None: ...

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        for stream, codes, count in zip(chunks.streams, chunks.codes, chunks.counts, strict=True):
            self.codes.setdefault(stream.key, []).append(codes[:count])
        return scripted_pcm(chunks.codes), {}

    def of(self, key: str) -> np.ndarray:
        return np.concatenate(self.codes.get(key, [np.empty((0, 16), np.int32)]))


def synthesise(
    folder: Path, requests: list[dict[str, Any]], voices: Sequence[Voice | None] = (), **settings: Any
) -> list[np.ndarray]:
    """Codes [frames, 16] of each request, all submitted together; `voices` are for a Base checkpoint."""
    checkpoint = Checkpoint.open(str(folder))
    sizes = {"max_streams": 8, "max_text_tokens": 256, "max_frames_limit": 512, "talker_proof_seconds": 0}
    config = EngineConfig.model_validate({"checkpoint": str(folder), **sizes, **settings})
    recorder = CodeRecorder()
    runner = load_runner(checkpoint, config, CPU)
    prompts = PromptBuilder(checkpoint, config)
    engine = build_engine(config, prompts.num_codebooks, runner, recorder)
    listeners = [Listener() for _ in requests]
    for index, (request, listener, voice) in enumerate(
        zip(requests, listeners, voices or [None] * len(requests), strict=True)
    ):
        asked = SynthesisRequest.of(request)
        engine.submit(prompts.stream(asked.in_voice(voice) if voice else asked, listener, str(index)))
    engine.start()
    assert all(listener.ended.wait(WAIT) and listener.error is None for listener in listeners)
    engine.scheduler.check_integrity()
    engine.close()
    return [np.concatenate(recorder.codes[str(index)]) for index in range(len(requests))]


def begin_sequence(
    sequences: Sequences, sequence_id: int, request: SynthesisRequest, listener: Listener, key: str, last: bool
) -> None:
    """Opens a sequence whose voice is available, and begins it."""
    sequence = sequences.open(sequence_id, request.text, last)
    try:
        sequences.begin(sequence, request, listener, key, time.perf_counter())
    except RequestError:
        sequences.abandon(sequence)
        raise


def reference_prefill(model: Any, generate: Callable[[], Any]) -> dict[str, torch.Tensor]:
    """The inputs of the reference's talker, captured when `generate` calls it."""

    class CapturedError(Exception):
        pass

    captured: dict[str, torch.Tensor] = {}

    def capture(**inputs: torch.Tensor) -> None:
        captured.update(inputs)
        raise CapturedError

    model.talker.generate = capture
    with pytest.raises(CapturedError):
        generate()
    return captured
