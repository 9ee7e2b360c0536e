"""The configuration files of a released checkpoint (docs/model.md, Configuration values)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

# Sampling parameters of checkpoints and requests.
Temperature = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=0)]
TopP = Annotated[float, Field(gt=0, le=1)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=10)]
TokenId = Annotated[int, Field(ge=0)]

# Kernel sizes and dilations of the codec, constants of the released class (docs/model.md, Codec decoder).
PRE_CONV_KERNEL = 3
CONV_KERNEL = 7
RESIDUAL_DILATIONS = (1, 3, 9)


class CheckpointError(ValueError):
    """A checkpoint is unusable; the message names the file and the error."""


class ReleasedConfig(BaseModel):
    """Part of a released config.json; keys that inference does not use are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class TransformerConfig(ReleasedConfig):
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int = Field(gt=0)
    attention_bias: Literal[False] = False
    hidden_act: Literal["silu"] = "silu"

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        return self.num_key_value_heads * self.head_dim


class CodePredictorConfig(TransformerConfig):
    vocab_size: int


class TalkerConfig(TransformerConfig):
    code_predictor_config: CodePredictorConfig
    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    num_code_groups: int = Field(gt=1)
    codec_pad_id: TokenId
    codec_bos_id: TokenId
    codec_eos_token_id: TokenId
    codec_think_id: TokenId
    codec_nothink_id: TokenId
    codec_think_bos_id: TokenId
    codec_think_eos_id: TokenId
    codec_language_id: dict[str, TokenId]
    spk_id: dict[str, TokenId]
    spk_is_dialect: dict[str, str | Literal[False]]

    @property
    def num_suppressed(self) -> int:
        """Number of ids at the top of the vocabulary that are never sampled, except end of speech.

        See docs/model.md, Sampling.
        """
        return 1024

    @model_validator(mode="after")
    def _fits_together(self) -> "TalkerConfig":
        predictor = self.code_predictor_config
        if predictor.vocab_size != self.vocab_size - self.num_suppressed:
            raise ValueError(f"code_predictor_config.vocab_size {predictor.vocab_size}, vocab_size {self.vocab_size}")
        missing = {d for d in self.spk_is_dialect.values() if d} - self.codec_language_id.keys()
        if missing:
            raise ValueError(f"spk_is_dialect names {sorted(missing)}, which codec_language_id does not have")
        return self

    @model_validator(mode="after")
    def _ids_are_embedded(self) -> "TalkerConfig":
        own = {name: getattr(self, name) for name in type(self).model_fields if name.startswith("codec_")}
        ids = {name: token_id for name, token_id in own.items() if isinstance(token_id, int)}
        for table in ("codec_language_id", "spk_id"):
            ids |= {f"{table}.{name}": token_id for name, token_id in getattr(self, table).items()}
        _check_ids(ids, "vocab_size", self.vocab_size)
        return self


class SpeakerEncoderConfig(ReleasedConfig):
    """Defaults of the released class; the files contain only enc_dim and sample_rate.

    See docs/model.md, Configuration values.
    """

    enc_dim: int = 1024
    sample_rate: int = 24000
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


class ModelConfig(ReleasedConfig):
    tts_model_type: Literal["base", "custom_voice", "voice_design"]
    tts_model_size: str
    talker_config: TalkerConfig
    speaker_encoder_config: SpeakerEncoderConfig = SpeakerEncoderConfig()
    im_start_token_id: TokenId
    im_end_token_id: TokenId
    assistant_token_id: TokenId
    tts_pad_token_id: TokenId
    tts_bos_token_id: TokenId
    tts_eos_token_id: TokenId

    @model_validator(mode="after")
    def _ids_are_embedded(self) -> "ModelConfig":
        ids = {name: getattr(self, name) for name in type(self).model_fields if name.endswith("_token_id")}
        _check_ids(ids, "talker_config.text_vocab_size", self.talker_config.text_vocab_size)
        return self


class GenerationConfig(ReleasedConfig):
    """generation_config.json; missing keys have the reference's hard-coded defaults (docs/model.md, Sampling)."""

    do_sample: bool = True
    temperature: Temperature = 0.9
    top_k: TopK = 50
    top_p: TopP = 1.0
    repetition_penalty: RepetitionPenalty = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: Temperature = 0.9
    subtalker_top_k: TopK = 50
    subtalker_top_p: TopP = 1.0
    max_new_tokens: int = 2048
    # Not in released checkpoints: see EngineConfig.part_text_tokens, and how an utterance ends in docs/api.md. In no
    # language are more than ten tokens spoken in a second, 12.5 frames.
    part_text_tokens: int = Field(default=150, ge=0)
    min_frames_per_text_token: float = Field(default=1.0, ge=0)


class AdapterConfig(ReleasedConfig):
    """adapter_config.json of PEFT."""

    base_model_name_or_path: str | None = None


class AddedTokenConfig(ReleasedConfig):
    content: str


class TokenizerConfig(ReleasedConfig):
    """tokenizer_config.json."""

    added_tokens_decoder: dict[TokenId, AddedTokenConfig]


class CodecDecoderConfig(ReleasedConfig):
    codebook_size: int
    codebook_dim: int
    latent_dim: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    sliding_window: int
    rope_theta: float
    rms_norm_eps: float
    num_quantizers: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]
    decoder_dim: int
    attention_bias: Literal[False] = False
    hidden_act: Literal["silu"] = "silu"


class CodecEncoderConfig(ReleasedConfig):
    """The MimiConfig of the released file (docs/model.md, Configuration values)."""

    num_filters: int
    kernel_size: int
    last_kernel_size: int
    residual_kernel_size: int
    num_residual_layers: int
    compress: int
    upsampling_ratios: tuple[int, ...]
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    sliding_window: int
    num_quantizers: int
    num_semantic_quantizers: int
    codebook_size: int
    codebook_dim: int
    vector_quantization_hidden_dimension: int


class SpeechTokenizerConfig(ReleasedConfig):
    decoder_config: CodecDecoderConfig
    encoder_config: CodecEncoderConfig
    encoder_valid_num_quantizers: int
    output_sample_rate: int
    decode_upsample_rate: int


ConfigT = TypeVar("ConfigT", bound=BaseModel)


def read_config(path: Path, schema: type[ConfigT]) -> ConfigT:
    """Parse a JSON file; raises CheckpointError naming the file and every invalid field."""
    try:
        return schema.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise CheckpointError(f"{path}: {wrong}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None


def _check_ids(ids: Mapping[str, int], size_name: str, size: int) -> None:
    """Raises ValueError for the first id outside an embedding of `size` rows."""
    for name, token_id in ids.items():
        if token_id >= size:
            raise ValueError(f"{name} is {token_id}, {size_name} is {size}")
