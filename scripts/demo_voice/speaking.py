"""Speaks with a checkpoint through the server's engine and codec, in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from export.modules.codec import CodecStep
from qwen3_tts_engine.checkpoint.alignment import TextLayout
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.contract import split_frames
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.lifecycle.warm_up import DiscardSink
from qwen3_tts_engine.request import RequestError, SynthesisRequest
from qwen3_tts_engine.startup import build_engine
from qwen3_tts_engine.talker.loader import load_runner
from scripts.demo_voice.sizes import FRAME

CPU = torch.device("cpu")
PCM_SCALE = 32767
STREAMS = 16


class Speaker:
    def __init__(self, folder: Path, text_layout: TextLayout = "full") -> None:
        self._checkpoint = Checkpoint.open(str(folder))
        self._config = EngineConfig(
            checkpoint=str(folder), max_streams=STREAMS, max_frames_limit=512, text_layout=text_layout
        )
        self._codec = CodecStep.from_checkpoint(self._checkpoint)

    def codes(self, requests: Sequence[dict[str, Any]]) -> list[np.ndarray]:
        """Codes [frames, 16] of each request, sampled as the server does."""
        recorder, listeners = _Recorder(), [DiscardSink() for _ in requests]
        prompts = PromptBuilder(self._checkpoint, self._config)
        runner = load_runner(self._checkpoint, self._config, CPU)
        engine = build_engine(self._config, prompts.num_codebooks, runner, recorder)
        engine.start()
        for index, (request, listener) in enumerate(zip(requests, listeners, strict=True)):
            engine.submit(prompts.stream(SynthesisRequest.of(request), listener, str(index)))
        for listener in listeners:
            listener.ended.wait()
        engine.close()
        if errors := [listener.error for listener in listeners if listener.error]:
            raise errors[0]
        return [recorder.of(str(index)) for index in range(len(requests))]

    @torch.no_grad()
    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Codes [frames, 16] -> samples int16 [1920 frames]"""
        state, waves = torch.zeros(1, self._codec.state_size), [np.zeros(0, np.int16)]
        for start, stop in split_frames(len(codes)):
            chunk = torch.from_numpy(codes[None, start:stop].astype(np.int32))
            wave, state = self._codec(chunk, state, torch.tensor([[start]], dtype=torch.int32))
            waves.append((wave[0].clamp(-1, 1) * PCM_SCALE).short().numpy())
        samples = np.concatenate(waves)
        assert len(samples) == FRAME * len(codes)
        return samples


class _Recorder:
    """A codec client that records codes."""

    max_calls = 1

    def __init__(self) -> None:
        self._codes: dict[str, list[np.ndarray]] = {}

    def announce(self) -> None: ...

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        for stream, codes, count in zip(chunks.streams, chunks.codes, chunks.counts, strict=True):
            self._codes.setdefault(stream.key, []).append(codes[:count].copy())
        return np.zeros((len(chunks), chunks.codes.shape[1] * FRAME), np.int16), {}

    def of(self, key: str) -> np.ndarray:
        return np.concatenate(self._codes.get(key, [np.empty((0, 16), np.int32)]))
