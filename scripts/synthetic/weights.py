"""Seeded random weights with stable activations: codes vary with the text, and the audio is audible."""

import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from qwen3_tts_engine.checkpoint.tensor_shapes import TRANSPOSED_KERNEL_STRIDES, TensorShapes
from scripts.synthetic.configs import CODEC_IDS

SAFETENSORS_DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}


class Spread(NamedTuple):
    """Normally distributed values."""

    mean: float
    deviation: float


# Tensors that are not matrix or convolution weights; the first matching pattern applies.
SPREADS = (
    (r"codebook\.initialized$", Spread(1.0, 0.0)),
    (r"cluster_usage$", Spread(1.0, 0.1)),
    (r"norm\.weight$", Spread(1.0, 0.1)),
    (r"layer_scale\.scale$", Spread(0.01, 0.001)),
    (r"\.gamma$", Spread(0.1, 0.01)),
    (r"\.(alpha|beta)$", Spread(0.0, 0.2)),
    (r"\.bias$", Spread(0.0, 0.02)),
    (r"text_embedding\.weight$", Spread(0.0, 1.0)),
    (r"talker\.model\.codec_embedding\.weight$", Spread(0.0, 0.5)),
    (r"code_predictor\.model\.codec_embedding\.\d+\.weight$", Spread(0.0, 0.25)),
    (r"\.embedding_sum$", Spread(0.0, 0.25)),
    (r"\.embed_sum$", Spread(0.0, 0.1)),
)
# Gains of all other weights, relative to those that preserve variance.
GAINS = (
    (r"talker\.codec_head|lm_head\.\d+", 3.0),
    (r"self_attn\.o_proj|mlp\.down_proj|mlp\.fc2", 0.5),
    (r"^decoder\.decoder\.\d+\.block\.\d\.conv2", 0.3),
    (r"^decoder\.decoder\.6\.conv", 0.055),
    (r"speaker_encoder\.fc\.", 0.3),
)
EOS_GAIN = 2.0


def write_weights(path: Path, shapes: TensorShapes, dtype: torch.dtype, seed: int) -> Iterator[int]:
    """Writes a safetensors file one tensor at a time; yields the number of parameters of each tensor written.

    The same seed gives the same file on the same kind of device (CUDA where there is one).
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with path.open("wb") as file:
        file.write(_header(shapes, dtype))
        for name, shape in shapes.items():
            tensor = initial(name, shape, seed, device).to(dtype).cpu()
            file.write(tensor.view(torch.uint8).numpy().data)
            yield tensor.numel()


def initial(name: str, shape: tuple[int, ...], seed: int, device: torch.device) -> torch.Tensor:
    """The FP32 values of one released tensor; they depend on its name and the seed, not on its neighbours."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    mean, deviation = _spread(name, shape)
    tensor = torch.randn(shape, generator=generator, device=device).mul_(deviation).add_(mean)
    if name == "talker.codec_head.weight":
        tensor[CODEC_IDS["codec_eos_token_id"]] *= EOS_GAIN
    return tensor


def _spread(name: str, shape: tuple[int, ...]) -> Spread:
    for pattern, spread in SPREADS:
        if re.search(pattern, name):
            return spread
    gain = next((gain for pattern, gain in GAINS if re.search(pattern, name)), 1.0)
    return Spread(0.0, gain / math.sqrt(_fan_in(name, shape)))


def _fan_in(name: str, shape: tuple[int, ...]) -> int:
    if re.search(r"^decoder\.upsample\.\d\.0\.", name):
        return shape[0]
    if re.search(r"^decoder\.decoder\.\d\.block\.1\.", name):
        return TRANSPOSED_KERNEL_STRIDES * shape[0]
    return math.prod(shape[1:])


def _header(shapes: TensorShapes, dtype: torch.dtype) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": SAFETENSORS_DTYPES[dtype], "shape": shape, "data_offsets": (start, end)}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header
