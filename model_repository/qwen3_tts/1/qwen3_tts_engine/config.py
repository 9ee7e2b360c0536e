"""The engine's settings with their defaults and limits."""

import math
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.checkpoint.configs import ModelConfig
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES

ENVIRONMENT_PREFIX = "QWEN3_TTS_"
MAIN_MODEL = "qwen3_tts"
MAX_REFERENCE_SECONDS = 120
MIN_REFERENCE_RATE, MAX_REFERENCE_RATE = 8_000, 192_000  # Hz
# Settings that several models on one server never share.
PER_MODEL_SETTINGS = ("checkpoint", "revision", "speaker_encoder")
# Settings that only the environment may have: Triton shows a model's parameters to every caller.
SECRET_SETTINGS = ("voices_dsn",)
# Settings that code2wav reads too, from the environment only: Triton gives it none of this model's parameters.
CODEC_SETTINGS = ("kernels", "kernel_path", "gpu_memory_share")
# The value of settings that follow from the machine or the checkpoint; the most streams that it chooses.
AUTO, MOST_AUTO_STREAMS = "auto", 256
# Upper bound of a prompt's rows besides instruction and text, max_text_tokens each (docs/model.md, Prompt rows).
CONTROL_ROWS = 16


TextPolicy = Literal["verbatim", "plain", "refuse"]
CpuWeights = Literal["float32", "int8"]


class ConfigError(ValueError):
    """A setting is unknown or out of range; the message names it, its value and what is allowed."""


class EngineConfig(BaseModel):
    """Settings of one `qwen3_tts` model, from the parameters of its config.pbtxt and from the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    checkpoint: str = Field(min_length=1)
    """Folder in the released layout, or a hub id."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Where the talker runs: auto, cpu, cuda or cuda:N; auto is the device that Triton assigned."""
    kernels: Literal["auto", "required", "eager", "off"] = "auto"
    """Fused CUDA kernels under CUDA graphs, on a CPU graphs of ONNX Runtime. auto falls back to PyTorch operations,
    which are slower, where they cannot be built or proven; the others fail instead: required, and for debugging eager,
    which launches the talker's CUDA kernels one by one. off uses PyTorch operations. code2wav treats eager and off
    as auto."""
    kernel_path: Literal["auto", "general"] = "auto"
    """Which kernels: auto takes those for the GPU's compute capability, general those of all GPUs since Ampere, for
    comparison or where the others fail."""
    batch_invariant: bool = False
    """On a GPU, makes equal seeds give equal codes at any load. Without it, kernels for other batch sizes round
    differently and occasionally draw another code. One stream is 14 % slower with it, 64 take twice as long."""
    take_turns: Literal["auto", "on", "off"] = "auto"
    """Whether talker and codec alternate instead of running at the same time; auto alternates on a GPU without MPS,
    which would time-slice the two processes."""
    talker_proof_seconds: float = Field(default=2.0, ge=0)
    """Time for comparing the talker with PyTorch in FP32 at start, with 1 to 64 streams; where it differs, PyTorch
    operations replace the kernels, or the load fails (see kernels). What PyTorch computes is kept in ~/.cache/qwen3_tts
    if it takes more than 3 s. 0 skips the comparison."""
    codec_proof_seconds: float = Field(default=3.0, ge=0)
    """Time for comparing code2wav with its golden cases before the first request, in all shapes that the talker uses; a
    difference ends the engine. 0 skips the comparison and the warm-up speech."""
    codec_wait_seconds: float = Field(default=120.0, gt=0)
    """How long the proof waits for code2wav once Triton has started; requests wait as well."""
    cpu_threads: int = Field(default=0, ge=0)
    """Threads of one talker operation on the CPU; 0: all cores but the codec's, which has half, at most four."""
    cpu_weights: CpuWeights = "float32"
    """Weights of the talker's products on a CPU. int8 takes less time and memory, and draws other codes where logits
    are close (docs/cpu.md, Weights in int8); it requires the graphs of ONNX Runtime."""
    when_dead: Literal["exit", "unload", "stay"] = "exit"
    """Action after the engine died and every stream received its error. exit ends tritonserver (guard.py), so that its
    supervisor restarts it. unload unloads the model; it requires --model-control-mode=explicit, since an unload that
    Triton refuses can crash Triton 2.51. stay refuses every request with UNAVAILABLE."""
    max_codec_failures: int = Field(default=5, ge=1)
    """Consecutive failures of codec calls after which the engine counts as dead."""
    call_timeout_seconds: float = Field(default=60.0, gt=0)
    """Timeout of a codec or encoder call; beyond it the engine counts as dead."""
    drain_file: str = ""
    """While this file exists, the model is not ready; while it contains `refusing`, new requests get UNAVAILABLE and
    open streams continue (docs/fleet.md, Draining). The launcher sets it. Empty: none."""
    max_streams: int = Field(
        default=MOST_AUTO_STREAMS,
        ge=1,
        le=1024,
        json_schema_extra={"default": AUTO, "type": ["integer", "string"], "pattern": f"^{AUTO}$"},
    )
    """Streams that may run concurrently; each holds a slot from admission to its last chunk. auto: as many as fit into
    the free GPU memory, at most 256; 256 on a CPU. A number that does not fit is refused (docs/operations.md,
    Memory)."""
    max_waiting: int = Field(default=256, ge=0)
    """Requests that may wait for a slot; the next one is refused with UNAVAILABLE."""
    load_limit: float = Field(default=0.9, ge=0, le=1)
    """Share of real time that running streams may take, by the engine's own measurements; further streams are not
    admitted. 0 admits all."""
    overload: Literal["wait", "refuse"] = "wait"
    """Whether a stream beyond max_streams or load_limit waits or gets UNAVAILABLE at once."""
    page_size: int = Field(default=8, ge=1)
    """Positions in one page of the talker's key/value cache. Prompts share whole pages of their prefix, which has eight
    rows or more (docs/kv-cache.md)."""
    kv_cache_gib: float = Field(default=0.0, ge=0)
    """Size of the key/value cache; 0 sizes it for max_streams streams of ordinary length. When it is full, the streams
    with the most buffered audio are parked (docs/kv-cache.md)."""
    gpu_memory_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the GPU's memory that this server may take with its codec, where several servers or talkers have one
    GPU (docs/operations.md, Two servers on one GPU)."""
    max_text_tokens: int = Field(default=1024, ge=1)
    """Longest text, and longest instruction, of a request."""
    max_frames_limit: int = Field(default=4096, ge=2)
    """Hard limit of a request's frames (4 096 are 5.5 minutes)."""
    frames_per_text_token: int = Field(default=12, ge=1)
    """Default frame cap of a request: base_frames + this per text token (vllm-omni's cap has the same slope)."""
    base_frames: int = Field(default=75, ge=2)
    """See frames_per_text_token."""
    max_chunk_frames: int = CHUNK_FRAMES[-1]
    """Longest chunk: 1, 2, 4, 8 or 16 frames; each chunk's length depends on the listener's buffered audio."""
    part_text_tokens: Literal["auto"] | Annotated[int, Field(ge=0)] = "auto"
    """A part of a long text ends with the first sentence after this many tokens; the next part is generated separately,
    in the same voice and without a seam. 0 never splits a text. auto: what the checkpoint's generation_config.json
    says, else 150."""
    streamed_part_frames: int = Field(default=1024, ge=2)
    """Frame cap of a part of streamed text."""
    speak_rest: Literal["auto", "on", "off"] = "auto"
    """Whether the rest of a text is spoken where the talker ends before it, which it shows by its attention; only
    checkpoints with heads for word times (docs/word-times.md). auto: on a CPU, where following it costs little."""
    text_policy: TextPolicy = "verbatim"
    """What becomes of Markdown, tags and emoji in a text: verbatim speaks them, plain leaves them out, refuse refuses
    the request; a request can choose (docs/text.md)."""
    normalize_text: bool = False
    """Whether numbers, dates, amounts and units are written out before they are spoken, in English, Chinese and
    Japanese; a request can choose (docs/text.md). Requires the extra `normalize`."""
    lexicon_file: str = ""
    """A JSON object of words and their spellings, for every request (docs/text.md). Empty: none."""
    trim_silence: bool = True
    """Whether silence before the first speech is not sent, at most half a second of it; a request can choose."""
    max_silence_seconds: float = Field(default=2.0, ge=0)
    """Silence after speech that ends an utterance, or the current part of a long text; 0 disables that."""
    max_repeated_seconds: float = Field(default=4.0, ge=0)
    """Time over which the talker's codes repeat that ends an utterance or part, 3 s or more; 0 disables that."""
    sequence_idle_seconds: float = Field(default=30.0, gt=0)
    """Idle time after which an open sequence ends."""
    text_layout: Literal["auto", "full", "streaming"] = "auto"
    """full puts all text into the prompt, streaming feeds one token per frame; auto follows the reference."""

    max_reference_seconds: float = Field(default=30.0, ge=0.1, le=MAX_REFERENCE_SECONDS)
    """The longest reference of a voice to clone; its frames become part of every prompt."""
    voices_folder: str = "~/.local/share/qwen3_tts/voices"
    """Folder of the registered voices; models may share one. Created with the first voice."""
    voices_dsn: SecretStr | None = None
    """Connection string of a PostgreSQL database that keeps the registered voices in place of voices_folder, for
    several servers (docs/voices.md). It may hold a password, so only the environment may have it."""
    max_voices: int = Field(default=1000, ge=0)
    """Voices that may be registered."""
    voices_mib: int = Field(default=8192, ge=1)
    """Disk space of all registered voices; one takes about 3 MiB, 5 in FP32."""
    voice_cache_mib: int = Field(default=512, ge=1)
    """Memory of the codec's device for voices in context: each has a row, as a stream has; the least recently used one
    is evicted. At least as many rows as streams, up to 64, and one more; at most 256."""
    max_voice_requests: int = Field(default=64, ge=1)
    """Requests that may wait for the encoders; the next one is refused with UNAVAILABLE."""
    speaker_encoder: str = Field(default="speaker_encoder", min_length=1)
    """Name of the speaker encoder model that `python -m export` made from this checkpoint."""

    @model_validator(mode="before")
    @classmethod
    def _leave_auto_unset(cls, settings: Any) -> Any:
        is_auto = isinstance(settings, dict) and settings.get("max_streams") == AUTO
        return {name: value for name, value in settings.items() if name != "max_streams"} if is_auto else settings

    @field_validator("max_chunk_frames")
    @classmethod
    def _is_verified(cls, frames: int) -> int:
        if frames not in CHUNK_FRAMES:
            raise ValueError(f"must be one of {', '.join(map(str, CHUNK_FRAMES))}")
        return frames

    @field_validator("max_repeated_seconds")
    @classmethod
    def _has_several_periods(cls, seconds: float) -> float:
        if 0 < seconds < 3:
            raise ValueError("must be 0, or at least 3")
        return seconds

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, str], environment: Mapping[str, str] | None = None, model: str = MAIN_MODEL
    ) -> "EngineConfig":
        """Read settings from model parameters; QWEN3_TTS_<SETTING> in the environment overrides them.

        For a model of another name <NAME>_<SETTING> overrides both, and its checkpoint comes only from there or its
        parameters. Raises ConfigError for an invalid value, and for a parameter that is unknown or that only the
        environment may have.
        """
        environment = os.environ if environment is None else environment
        settings = {name: value for name, value in parameters.items() if value != ""}
        for name in settings:
            _check_parameter(name)
        for name in cls.model_fields:
            for prefix in _prefixes(model, name):
                if value := environment.get(prefix + name.upper()):
                    settings[name] = value
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigError("; ".join(map(_describe, error.errors()))) from None

    def part_tokens(self, of_checkpoint: int) -> int:
        """part_text_tokens, with what auto means for a checkpoint."""
        return of_checkpoint if self.part_text_tokens == "auto" else self.part_text_tokens

    @property
    def has_auto_streams(self) -> bool:
        """Whether max_streams is not a given number, but the most that auto chooses."""
        return "max_streams" not in self.model_fields_set

    @property
    def max_requests(self) -> int:
        """Requests that the engine takes at a time."""
        return self.max_streams + self.max_waiting

    @property
    def max_reference_frames(self) -> int:
        return math.ceil(self.max_reference_seconds / FRAME_SECONDS)

    @property
    def max_text_characters(self) -> int:
        """A token is at least one character in practice, and rarely more than a few."""
        return 16 * self.max_text_tokens

    def default_max_frames(self, text_tokens: int) -> int:
        """Default frame cap of a text of `text_tokens` tokens."""
        return min(self.max_frames_limit, self.base_frames + self.frames_per_text_token * text_tokens)


def own_prefix(model: str) -> str:
    """Prefix of environment variables that apply to `model` alone; to all models, for the main one."""
    return re.sub(r"\W", "_", model).upper() + "_"


def no_setting(name: str, known: Iterable[str]) -> str:
    """Says that a parameter or variable is unknown, with the nearest of `known`, if any is near."""
    by_key = {_key(candidate): candidate for candidate in known}
    near = get_close_matches(_key(name), by_key, n=1)
    advice = f"did you mean {by_key[near[0]]}?" if near else "docs/configuration.md lists all"
    return f"{name} is no setting; {advice}"


def _key(name: str) -> str:
    """The part of a name that is compared: the shared prefix would make all names similar."""
    return name.lower().removeprefix(ENVIRONMENT_PREFIX.lower())


def _check_parameter(name: str) -> None:
    if name not in EngineConfig.model_fields:
        raise ConfigError(f"config.pbtxt: {no_setting(name, EngineConfig.model_fields)}")
    variable = ENVIRONMENT_PREFIX + name.upper()
    if name in SECRET_SETTINGS:
        raise ConfigError(f"{name}: every caller can read a parameter: set {variable} in the environment instead")
    if name in CODEC_SETTINGS:
        raise ConfigError(
            f"{name}: code2wav does not see this parameter: set {variable} in the environment, which both models read"
        )


def _prefixes(model: str, setting: str) -> list[str]:
    """Prefixes of a setting's environment variables; later ones override earlier ones."""
    own = own_prefix(model)
    return [own] if setting in PER_MODEL_SETTINGS else [ENVIRONMENT_PREFIX, own]


def _describe(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    # The input of a missing setting is all of the settings, secret ones among them.
    is_quoted = error["type"] != "missing" and name not in SECRET_SETTINGS
    return f"{name}: {error['input']!r}: {error['msg']}" if is_quoted else f"{name}: {error['msg']}"


def max_positions(model: ModelConfig, config: EngineConfig) -> int:
    """Positions of the longest stream: prompt and frames."""
    # A clone's prompt contains the reference's frames and its transcript.
    reference = config.max_reference_frames if model.tts_model_type == "base" else 0
    longest = CONTROL_ROWS + 2 * config.max_text_tokens + reference + config.max_frames_limit
    return min(longest, model.talker_config.max_position_embeddings)
