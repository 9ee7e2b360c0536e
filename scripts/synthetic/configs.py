"""The JSON files of a synthetic checkpoint: the released values, or those of a tiny model.

See docs/model.md, Configuration values.
"""

from typing import Any, Literal

Size = Literal["tiny", "0.6b", "1.7b"]
ModelType = Literal["custom_voice", "base", "voice_design"]
Json = dict[str, Any]

GENERATION: Json = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
TEXT_PREPROCESSOR: Json = {"padding_side": "left", "padding_value": 0.0, "processor_class": "Qwen3TTSProcessor"}
AUDIO_CONFIGURATION: Json = {"framework": "pytorch", "task": "feature-extraction", "allow_remote": True}
AUDIO_PREPROCESSOR: Json = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}

SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
CODEC_IDS: Json = {
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
    "codec_language_id": {
        "chinese": 2055,
        "english": 2050,
        "german": 2053,
        "italian": 2070,
        "portuguese": 2071,
        "spanish": 2054,
        "japanese": 2058,
        "korean": 2064,
        "french": 2061,
        "russian": 2069,
        "beijing_dialect": 2074,
        "sichuan_dialect": 2062,
    },
}

TRANSFORMER: Json = {
    "attention_bias": False,
    "attention_dropout": 0,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "num_attention_heads": 16,
    "num_code_groups": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_cache": True,
    "use_sliding_window": False,
}
PREDICTOR: Json = TRANSFORMER | {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "layer_types": ["full_attention"] * 5,
    "max_position_embeddings": 65536,
    "model_type": "qwen3_tts_talker_code_predictor",
    "num_hidden_layers": 5,
    "rope_scaling": None,
    "vocab_size": 2048,
}
TALKER: Json = TRANSFORMER | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 32768,
    "model_type": "qwen3_tts_talker",
    "num_hidden_layers": 28,
    "position_id_per_seconds": 13,
    "rope_scaling": {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default", "type": "default"},
    "text_hidden_size": 2048,
    "text_vocab_size": 151936,
    "vocab_size": 3072,
}
CODEC_DECODER: Json = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "codebook_dim": 512,
    "codebook_size": 2048,
    "decoder_dim": 1536,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "latent_dim": 1024,
    "layer_scale_initial_scale": 0.01,
    "max_position_embeddings": 8000,
    "num_attention_heads": 16,
    "num_hidden_layers": 8,
    "num_key_value_heads": 16,
    "num_quantizers": 16,
    "num_semantic_quantizers": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000,
    "semantic_codebook_size": 4096,
    "sliding_window": 72,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
    "vector_quantization_hidden_dimension": 512,
}
CODEC_ENCODER: Json = {
    "_frame_rate": 12.5,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "audio_channels": 1,
    "codebook_dim": 256,
    "codebook_size": 2048,
    "compress": 2,
    "dilation_growth_rate": 2,
    "dtype": "float32",
    "head_dim": 64,
    "hidden_act": "gelu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "kernel_size": 7,
    "last_kernel_size": 3,
    "layer_scale_initial_scale": 0.01,
    "max_position_embeddings": 8000,
    "norm_eps": 1e-05,
    "normalize": False,
    "num_attention_heads": 8,
    "num_filters": 64,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "num_quantizers": 32,
    "num_residual_layers": 1,
    "num_semantic_quantizers": 1,
    "pad_mode": "constant",
    "residual_kernel_size": 3,
    "rope_theta": 10000.0,
    "sampling_rate": 24000,
    "sliding_window": 250,
    "trim_right_ratio": 1.0,
    "upsample_groups": 512,
    "upsampling_ratios": [8, 6, 5, 4],
    "use_cache": False,
    "use_causal_conv": True,
    "use_conv_shortcut": False,
    "use_streaming": False,
    "vector_quantization_hidden_dimension": 256,
}

# Differences from the released 1.7B values above.
TALKER_SIZES: dict[Size, Json] = {
    "1.7b": {},
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072},
    "tiny": {
        "head_dim": 64,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rope_scaling": TALKER["rope_scaling"] | {"mrope_section": [12, 10, 10]},
        "text_hidden_size": 96,
        "text_vocab_size": 2048,
    },
}
TINY_PREDICTOR: Json = {
    "head_dim": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "layer_types": ["full_attention"] * 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
}
TINY_SPEAKER_ENCODER: Json = {
    "enc_attention_channels": 16,
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_se_channels": 16,
}
TINY_CODEC_DECODER: Json = {
    "codebook_dim": 64,
    "decoder_dim": 32,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "latent_dim": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
}
TINY_CODEC_ENCODER: Json = {
    "codebook_dim": 32,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_filters": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "upsample_groups": 64,
    "vector_quantization_hidden_dimension": 32,
}
SIZE_NAMES: dict[Size, str] = {"tiny": "tiny", "0.6b": "0b6", "1.7b": "1b7"}


def model_config(size: Size, model_type: ModelType, text_ids: dict[str, int]) -> Json:
    """config.json; `text_ids` are the ids of the text tokens that it names."""
    config: Json = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": SIZE_NAMES[size],
        "tts_model_type": model_type,
        "talker_config": _talker(size, model_type),
        **text_ids,
    }
    if model_type == "base":
        config["speaker_encoder_config"] = _speaker_encoder(size, config["talker_config"]["hidden_size"])
    return config


def speech_tokenizer_config(size: Size) -> Json:
    """speech_tokenizer/config.json."""
    tiny = size == "tiny"
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decoder_config": CODEC_DECODER | (TINY_CODEC_DECODER if tiny else {}),
        "encoder_config": CODEC_ENCODER | (TINY_CODEC_ENCODER if tiny else {}),
    }


def _talker(size: Size, model_type: ModelType) -> Json:
    speakers = SPEAKERS if model_type == "custom_voice" else {}
    talker = TALKER | CODEC_IDS | TALKER_SIZES[size]
    talker["spk_id"] = speakers
    talker["spk_is_dialect"] = {speaker: DIALECTS.get(speaker, False) for speaker in speakers}
    talker["code_predictor_config"] = PREDICTOR | (TINY_PREDICTOR if size == "tiny" else {})
    if size == "tiny" and model_type == "base":
        # As in the released 0.6B, a talker as wide as its code predictor, without a projection between them.
        talker["hidden_size"] = TINY_PREDICTOR["hidden_size"]
    return talker


def _speaker_encoder(size: Size, talker_hidden: int) -> Json:
    config: Json = {"enc_dim": talker_hidden, "sample_rate": 24000}
    return config | (TINY_SPEAKER_ENCODER if size == "tiny" else {})
