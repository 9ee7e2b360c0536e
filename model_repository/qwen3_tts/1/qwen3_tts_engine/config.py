"""Every setting of the engine, with its default and its limits."""

import math
import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.checkpoint.configs import ModelConfig
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES

ENVIRONMENT_PREFIX = "QWEN3_TTS_"
MAIN_MODEL = "qwen3_tts"
MAX_REFERENCE_SECONDS = 120
# What makes a model another one than its neighbour on the same server.
OF_ONE_MODEL = ("checkpoint", "revision", "speaker_encoder")
# Instruction and text take at most max_text_tokens each; the rest of a prompt is less than this (spec §2.3).
CONTROL_ROWS = 16


class ConfigError(ValueError):
    """A setting is unknown or out of range; the message names it, its value and what is allowed."""


class EngineConfig(BaseModel):
    """Settings of one `qwen3_tts` model, from the parameters of its config.pbtxt and from the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint: str = Field(min_length=1)
    """Folder in the released layout, or a hub id."""
    revision: str | None = None
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    kernels: Literal["auto", "required", "off"] = "auto"
    """Fused CUDA kernels; auto goes on without them, slower, where they cannot be built."""
    cuda_graphs: bool = True
    quantization: Literal["none", "fp8"] = "none"
    """fp8 rounds the weights of the talker's and the code predictor's layers to E4M3: a tick is up to 3 % shorter, the
    weights take half as much memory again, and codes change. docs/benchmarks says how much, and how to measure it."""
    batch_invariant: bool = False
    """On a GPU, equal seeds give equal codes whatever else runs; without it, kernels for other batch sizes round
    differently, and now and then another code is drawn. One stream is 14 % slower with it, 64 take twice as long."""
    take_turns: Literal["auto", "on", "off"] = "auto"
    """Whether talker and codec work in turn, never both at once; auto: on a GPU, which would slice its time."""
    shared_codec_states: Literal["auto", "on", "off"] = "auto"
    """Whether code2wav maps the codec's states from here, or they travel with each call; auto: where it can, which is
    in the form `python` on the same device."""
    codec_proof_seconds: float = Field(default=3.0, ge=0)
    """How long code2wav is compared with its golden cases, by calls of all shapes that the talker makes, before the
    first request is served; a difference ends the engine. 0 serves without the proof and without warm-up speech."""
    codec_wait_seconds: float = Field(default=120.0, gt=0)
    """How long the proof waits for code2wav once Triton has started; requests wait too."""
    cpu_threads: int = Field(default=0, ge=0)
    """Threads of one talker operation on the CPU; 0 takes half of the cores and leaves the rest to the codec."""
    when_dead: Literal["exit", "unload", "stay"] = "exit"
    """What happens when the engine dies, after every stream got its error. exit ends tritonserver (guard.py), so that
    whatever started it starts it again. unload unloads the model, with --model-control-mode=explicit only: where Triton
    refuses to unload, the refused call itself can crash Triton 2.51. stay refuses every request with UNAVAILABLE."""
    max_codec_failures: int = Field(default=5, ge=1)
    """Calls of the codec that may fail in a row; with so many the engine dies."""
    call_timeout_seconds: float = Field(default=60.0, gt=0)
    """How long a call of the codec or of an encoder may take; without an answer by then the engine dies."""
    max_streams: int = Field(default=256, ge=1, le=1024)
    """Streams in flight; each holds a slot from admission to its last chunk."""
    max_waiting: int = Field(default=256, ge=0)
    """Requests that may wait for a slot; the next one is refused with UNAVAILABLE."""
    load_limit: float = Field(default=0.9, ge=0, le=1)
    """Share of real time that the running streams may take, by the engine's own measurements; a stream beyond it does
    not run yet. 0 lets everyone run."""
    overload: Literal["wait", "refuse"] = "wait"
    """What becomes of a stream beyond max_streams or load_limit: it waits, or gets UNAVAILABLE at once."""
    page_size: int = Field(default=32, ge=1)
    """Positions in one page of the talker's key/value cache."""
    kv_cache_gib: float = Field(default=0.0, ge=0)
    """Size of the key/value cache; 0 takes what max_streams streams of common length need, or what memory is free.
    When streams come to need more, those with the most audio ahead make way (docs/kv-cache.md)."""
    max_text_tokens: int = Field(default=1024, ge=1)
    max_frames_limit: int = Field(default=4096, ge=2)
    """Upper limit of a request's frames, whatever it asks for (4 096 are 5.5 minutes)."""
    frames_per_text_token: int = Field(default=12, ge=1)
    """Cap of a request that names none: base_frames + this for each text token (vllm-omni's cap has the same slope)."""
    base_frames: int = Field(default=75, ge=2)
    max_chunk_frames: int = CHUNK_FRAMES[-1]
    """The longest chunk, one of code2wav.CHUNK_FRAMES; chunker.py chooses each length by the listener's lead."""
    part_text_tokens: int = Field(default=150, ge=0)
    """A part of a long text ends with the first sentence behind so many tokens; the next one is spoken on its own, in
    the same voice and without a seam. 0 speaks every text at once."""
    streamed_part_frames: int = Field(default=1024, ge=2)
    """Frames that a part of a text that still comes may take at most."""
    sequence_idle_seconds: float = Field(default=30.0, gt=0)
    """A sequence that brings no text for so long, and no end, is ended."""
    text_layout: Literal["auto", "full", "streaming"] = "auto"
    """Where the text goes: all of it into the prompt, or one token a frame; auto is the reference's choice by mode."""

    max_reference_seconds: float = Field(default=30.0, ge=0.1, le=MAX_REFERENCE_SECONDS)
    """The longest reference of a voice to clone; its frames become part of every prompt."""
    voices_folder: str = "~/.local/share/qwen3_tts/voices"
    """Where registered voices are kept; models may share one. Made with the first voice."""
    max_voices: int = Field(default=1000, ge=0)
    """Voices that may be registered."""
    voices_mib: int = Field(default=8192, ge=1)
    """What all registered voices may take on disk; one takes about 3 MiB, 5 in FP32."""
    voice_cache_mib: int = Field(default=512, ge=1)
    """What voices ready for use may take in memory, on the codec's device; the least recently used makes way."""
    max_voice_requests: int = Field(default=64, ge=1)
    """Requests that may wait for the encoders; the next one is refused with UNAVAILABLE."""
    speaker_encoder: str = Field(default="speaker_encoder", min_length=1)
    """Name of the model that `python -m export` made of this checkpoint's speaker encoder."""

    @field_validator("max_chunk_frames")
    @classmethod
    def _is_verified(cls, frames: int) -> int:
        if frames not in CHUNK_FRAMES:
            raise ValueError(f"must be one of {', '.join(map(str, CHUNK_FRAMES))}")
        return frames

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, str], environment: Mapping[str, str] | None = None, model: str = MAIN_MODEL
    ) -> "EngineConfig":
        """Read settings from model parameters; QWEN3_TTS_<SETTING> in the environment comes first.

        A model of another name has its own <NAME>_<SETTING> before that, and takes no checkpoint from the main one's.
        Raises ConfigError for an unknown setting or a value that is not allowed.
        """
        environment = os.environ if environment is None else environment
        settings = {name: value for name, value in parameters.items() if value != ""}
        for name in cls.model_fields:
            for prefix in _prefixes(model, name):
                if value := environment.get(prefix + name.upper()):
                    settings[name] = value
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigError("; ".join(map(_describe, error.errors()))) from None

    @property
    def max_reference_frames(self) -> int:
        return math.ceil(self.max_reference_seconds / FRAME_SECONDS)

    @property
    def max_text_characters(self) -> int:
        """A token is at least one character in practice, and seldom more than a few."""
        return 16 * self.max_text_tokens

    def default_max_frames(self, text_tokens: int) -> int:
        """Frames that a text of this many tokens may take when the request names no cap."""
        return min(self.max_frames_limit, self.base_frames + self.frames_per_text_token * text_tokens)


def _prefixes(model: str, setting: str) -> list[str]:
    """Beginnings of the environment variables of a setting; a later one comes before an earlier one."""
    own = re.sub(r"\W", "_", model).upper() + "_"
    return [own] if setting in OF_ONE_MODEL else [ENVIRONMENT_PREFIX, own]


def _describe(error: Any) -> str:
    return f"{'.'.join(map(str, error['loc']))}: {error['input']!r}: {error['msg']}"


def max_positions(model: ModelConfig, config: EngineConfig) -> int:
    """Positions of the longest stream: prompt and frames."""
    # A clone's prompt holds the frames of its reference, and its text before the text to speak.
    reference = config.max_reference_frames if model.tts_model_type == "base" else 0
    longest = CONTROL_ROWS + 2 * config.max_text_tokens + reference + config.max_frames_limit
    return min(longest, model.talker_config.max_position_embeddings)
