"""Tensor shapes give the tensor and parameter counts of the released files (docs/model.md, Tensors)."""

from math import prod

import pytest

from qwen3_tts_engine.checkpoint.configs import ModelConfig, SpeechTokenizerConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import (
    TensorShapes,
    codec_decoder_shapes,
    codec_encoder_shapes,
    speaker_encoder_shapes,
    talker_shapes,
)
from scripts.synthetic.configs import ModelType, Size, model_config, speech_tokenizer_config
from scripts.synthetic.tokenizer import text_tokenizer


def released(size: Size, model_type: ModelType) -> ModelConfig:
    return ModelConfig.model_validate(model_config(size, model_type, text_tokenizer(size).ids_for_config()))


def parameters(shapes: TensorShapes, prefix: str = "") -> int:
    return sum(prod(shape) for name, shape in shapes.items() if name.startswith(prefix))


@pytest.mark.parametrize(
    ("size", "tensors", "total"), [("0.6b", 402, 905_788_672), ("1.7b", 404, 1_916_676_352)], ids=["0.6b", "1.7b"]
)
def test_talker_tensor_and_parameter_counts(size: Size, tensors: int, total: int) -> None:
    shapes = talker_shapes(released(size, "custom_voice"))
    assert (len(shapes), parameters(shapes)) == (tensors, total)


@pytest.mark.parametrize(
    ("size", "tensors", "total", "speaker"),
    [("0.6b", 478, 914_643_008, 8_854_336), ("1.7b", 480, 1_928_677_440, 12_001_088)],
    ids=["0.6b", "1.7b"],
)
def test_base_has_a_speaker_encoder(size: Size, tensors: int, total: int, speaker: int) -> None:
    config = released(size, "base")
    encoder = speaker_encoder_shapes(config.speaker_encoder_config)
    shapes = talker_shapes(config) | encoder
    assert (len(shapes), parameters(shapes), parameters(encoder)) == (tensors, total, speaker)


@pytest.mark.parametrize(
    ("prefix", "small", "large"),
    [
        ("talker.model.layers.", 440_466_432, 1_409_408_000),
        ("talker.model.codec_embedding.", 3_145_728, 6_291_456),
        ("talker.codec_head.", 3_145_728, 6_291_456),
        ("talker.model.text_embedding.", 311_164_928, 311_164_928),
        ("talker.text_projection.", 6_294_528, 8_392_704),
        ("talker.code_predictor.model.layers.", 78_654_720, 78_654_720),
        ("talker.code_predictor.model.codec_embedding.", 31_457_280, 62_914_560),
        ("talker.code_predictor.lm_head.", 31_457_280, 31_457_280),
        ("talker.code_predictor.small_to_mtp_projection.", 0, 2_098_176),
    ],
)
def test_parameter_counts_of_talker_parts(prefix: str, small: int, large: int) -> None:
    assert parameters(talker_shapes(released("0.6b", "custom_voice")), prefix) == small
    assert parameters(talker_shapes(released("1.7b", "custom_voice")), prefix) == large


def test_speech_tokenizer_tensor_and_parameter_counts() -> None:
    config = SpeechTokenizerConfig.model_validate(speech_tokenizer_config("1.7b"))
    decoder, encoder = codec_decoder_shapes(config.decoder_config), codec_encoder_shapes(config.encoder_config)
    assert (len(decoder), len(encoder), len(decoder | encoder)) == (271, 225, 496)
    assert parameters(decoder) == 114_323_137
    assert parameters(decoder | encoder) == 170_557_441
