"""TensorRT takes the encoders' graphs, for references of any length; checked without a GPU by TensorRT for RTX."""

from pathlib import Path
from typing import Any

import pytest

from export.onnx_form import ONNX
from qwen3_tts_engine import encoders

trt: Any = pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT for RTX")
# The shortest, a common and the longest reference of the default settings.
PROFILES = {
    encoders.SPEAKER_ENCODER: {encoders.MEL: [(1, 7, 128), (1, 281, 128), (1, 2813, 128)]},
    encoders.CODEC_ENCODER: {
        encoders.AUDIO: [(1, 1, 1920), (1, 38, 1920), (1, 375, 1920)],
        encoders.NUM_SAMPLES: [(1, 1), (1, 1), (1, 1)],
    },
}


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_builds(tiny_base_models: Path, name: str) -> None:
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)  # strongly typed, as all of TensorRT for RTX is
    parser = trt.OnnxParser(network, logger)
    parsed = parser.parse_from_file(str(tiny_base_models / name / "1" / ONNX.filename))
    assert parsed, [str(parser.get_error(i)) for i in range(parser.num_errors)]
    profile = builder.create_optimization_profile()
    for tensor, shapes in PROFILES[name].items():
        profile.set_shape(tensor, *shapes)
    config = builder.create_builder_config()
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is not None
