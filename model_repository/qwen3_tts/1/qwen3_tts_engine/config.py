"""Every setting of the engine, with its default and its limits."""

import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

ENVIRONMENT_PREFIX = "QWEN3_TTS_"


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
    cpu_threads: int = Field(default=0, ge=0)
    """Threads of one talker operation on the CPU; 0 takes half of the cores and leaves the rest to the codec."""
    unload_when_dead: bool = False
    """Unload the model when its engine dies: for --model-control-mode=explicit only. Where Triton refuses to unload,
    the refused call itself can crash Triton 2.51."""
    max_streams: int = Field(default=256, ge=1, le=1024)
    """Streams in flight; each holds a slot from admission to its last chunk."""
    max_waiting: int = Field(default=256, ge=0)
    """Requests that may wait for a slot; the next one is refused with UNAVAILABLE."""
    load_limit: float = Field(default=0.9, ge=0, le=1)
    """Share of real time that the running streams may take, by the engine's own measurements; a stream beyond it does
    not run yet. 0 lets everyone run."""
    overload: Literal["wait", "refuse"] = "wait"
    """What becomes of a stream beyond load_limit: it waits, as one without a slot does, or gets UNAVAILABLE."""
    page_size: int = Field(default=32, ge=1)
    """Positions in one page of the talker's key/value cache."""
    kv_cache_gib: float = Field(default=0.0, ge=0)
    """Size of the key/value cache; 0 takes what max_streams streams of common length need, or what memory is free."""
    max_text_tokens: int = Field(default=1024, ge=1)
    max_frames_limit: int = Field(default=4096, ge=2)
    """Upper limit of a request's frames, whatever it asks for (4 096 are 5.5 minutes)."""
    frames_per_text_token: int = Field(default=12, ge=1)
    """Cap of a request that names none: base_frames + this for each text token (vllm-omni's cap has the same slope)."""
    base_frames: int = Field(default=75, ge=2)
    max_chunk_frames: int = Field(default=8, ge=1, le=32)
    """The longest chunk; how long each one is, chunker.py decides by the listener's lead."""
    text_layout: Literal["auto", "full", "streaming"] = "auto"
    """Where the text goes: all of it into the prompt, or one token a frame; auto is the reference's choice by mode."""

    @field_validator("max_chunk_frames")
    @classmethod
    def _is_on_the_ramp(cls, frames: int) -> int:
        if frames & (frames - 1):
            raise ValueError("must be a power of two")
        return frames

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, str], environment: Mapping[str, str] | None = None
    ) -> "EngineConfig":
        """Read settings from model parameters; QWEN3_TTS_<SETTING> in the environment comes first.

        Raises ConfigError for an unknown setting or a value that is not allowed.
        """
        environment = os.environ if environment is None else environment
        settings = {name: value for name, value in parameters.items() if value != ""}
        for name in cls.model_fields:
            if value := environment.get(ENVIRONMENT_PREFIX + name.upper()):
                settings[name] = value
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigError("; ".join(map(_describe, error.errors()))) from None

    def default_max_frames(self, text_tokens: int) -> int:
        """Frames that a text of this many tokens may take when the request names no cap."""
        return min(self.max_frames_limit, self.base_frames + self.frames_per_text_token * text_tokens)


def _describe(error: Any) -> str:
    return f"{'.'.join(map(str, error['loc']))}: {error['input']!r}: {error['msg']}"
