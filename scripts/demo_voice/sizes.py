"""The sizes that are trained, in the terms of the released configuration files.

A codebook has 256 entries, so that all ids behind them move down by 1792. Eight of the sixteen codebooks carry sound;
the rows of the others are zero wherever they are read. Widths are multiples of 32, as the GPU kernels require.
"""

from dataclasses import dataclass
from typing import Literal

from scripts.demo_voice.tokenizer import SpokenIds
from scripts.synthetic.configs import (
    CODEC_DECODER,
    CODEC_ENCODER,
    CODEC_IDS,
    GENERATION,
    PREDICTOR,
    SPEAKERS,
    TALKER,
    Json,
)

SizeName = Literal["full", "mini"]
CODES, RELEASED_CODES = 256, 2048
ACTIVE = 8
SHIFT = CODES - RELEASED_CODES
FRAME = 1920
RATE = 24_000
# The speaker of each voice, in the order of flite.VOICES: two of the released checkpoints', whose names defaults use.
VOICE_SPEAKERS = ("vivian", "ryan")
LANGUAGES = tuple(name for name in CODEC_IDS["codec_language_id"] if not name.endswith("dialect"))


@dataclass(frozen=True)
class Sizes:
    """talker_config, decoder_config and encoder_config."""

    talker: Json
    decoder: Json
    encoder: Json

    @property
    def predictor(self) -> Json:
        predictor: Json = self.talker["code_predictor_config"]
        return predictor


def sizes(name: SizeName) -> Sizes:
    mini = name == "mini"
    return Sizes(_talker(mini), _decoder(mini), _encoder(mini))


def model_config(chosen: Sizes) -> Json:
    """config.json."""
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "tiny",
        "tts_model_type": "custom_voice",
        "talker_config": chosen.talker,
        **SpokenIds().control,
    }


def speech_tokenizer_config(chosen: Sizes) -> Json:
    """speech_tokenizer/config.json."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "decode_upsample_rate": FRAME,
        "encode_downsample_rate": FRAME,
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": RATE,
        "output_sample_rate": RATE,
        "decoder_config": chosen.decoder,
        "encoder_config": chosen.encoder,
    }


# The voice learned single sentences, and leaves out most of a part of 150 tokens.
PART_TEXT_TOKENS = 30
# Among 294 complete held-out sentences the minimum was 1.59 and the median 2.43.
MIN_FRAMES_PER_TEXT_TOKEN = 1.2
# Lower temperatures than in the released checkpoints: fewer words are mistaken.
GENERATION_CONFIG = GENERATION | {
    "max_new_tokens": 2048,
    "temperature": 0.6,
    "subtalker_temperature": 0.6,
    "part_text_tokens": PART_TEXT_TOKENS,
    "min_frames_per_text_token": MIN_FRAMES_PER_TEXT_TOKEN,
}


def _talker(mini: bool) -> Json:
    hidden, inner, layers = (64, 128, 2) if mini else (256, 640, 8)
    heads: Json = {"head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    predictor_layers = 1 if mini else 2
    predictor = PREDICTOR | heads | {"hidden_size": hidden, "intermediate_size": 128 if mini else 512}
    predictor |= {"layer_types": ["full_attention"] * predictor_layers, "num_hidden_layers": predictor_layers}
    return (
        TALKER
        | _ids()
        | heads
        | {
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "rope_scaling": TALKER["rope_scaling"] | {"mrope_section": [12, 10, 10]},
            "text_hidden_size": hidden,
            "text_vocab_size": SpokenIds().rows,
            "vocab_size": CODES + 1024,
            "code_predictor_config": predictor | {"vocab_size": CODES},
        }
    )


def _ids() -> Json:
    """Control ids, without dialects: the voices speak English."""
    ids: Json = {name: value + SHIFT for name, value in CODEC_IDS.items() if isinstance(value, int)}
    languages = CODEC_IDS["codec_language_id"]
    ids["codec_language_id"] = {name: languages[name] + SHIFT for name in LANGUAGES}
    ids["spk_id"] = {name: SPEAKERS[name] + SHIFT for name in VOICE_SPEAKERS}
    return ids | {"spk_is_dialect": dict.fromkeys(VOICE_SPEAKERS, False)}


def _decoder(mini: bool) -> Json:
    width = 64 if mini else 256
    return CODEC_DECODER | {
        "codebook_dim": width,
        "codebook_size": CODES,
        "decoder_dim": width,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "latent_dim": width if mini else 192,
        "layer_scale_initial_scale": 0.1,
        "num_attention_heads": width // 64,
        "num_hidden_layers": 1 if mini else 2,
        "num_key_value_heads": width // 64,
        "semantic_codebook_size": CODES,
        "sliding_window": 16,
        # Three stages where the released codec has four: the last one keeps 32 channels.
        "upsample_rates": [10, 8, 6],
        "vector_quantization_hidden_dimension": width,
    }


def _encoder(mini: bool) -> Json:
    width = 64 if mini else 256
    return CODEC_ENCODER | {
        "codebook_dim": width // 2,
        "codebook_size": CODES,
        "hidden_size": width,
        "num_filters": 8 if mini else 32,
        # No transformer: one that saw short crops only would meet whole utterances.
        "num_hidden_layers": 0,
        "num_quantizers": 16,
        "upsample_groups": width,
        "vector_quantization_hidden_dimension": width // 2,
    }
