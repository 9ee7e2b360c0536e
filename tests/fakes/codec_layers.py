"""One call of every operation of the codec step on random inputs, for any implementation of the operations."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from code2wav_step.config import StepConfig
from code2wav_step.ops import Ops
from code2wav_step.pcm import to_int16
from code2wav_step.weights import Activation, Depthwise, Product, Unit
from export.forms.python_form import step_config
from export.modules.codec import CodecStep
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import codec_decoder_shapes
from scripts.synthetic.configs import CODEC_DECODER

SMALL = {
    "codebook_dim": 64,
    "decoder_dim": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "latent_dim": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
}
LAST_LAYER = "decoder.decoder.6.conv."


def small_config() -> StepConfig:
    """The smallest configuration that the kernels support."""
    return step_config(CodecDecoderConfig.model_validate(CODEC_DECODER | SMALL))


def pcm_of(waveform: Tensor) -> np.ndarray:
    """The samples that a codec gives, int16 as `waveform`."""
    return to_int16(waveform.cpu().numpy(), small_config().contract)


def small_step(**changes: int) -> CodecStep:
    """A step in FP32 with random weights; `changes` are of its config.

    Vectors are small, because a SnakeBeta of high frequency amplifies the rounding of its argument.
    """
    config = CodecDecoderConfig.model_validate(CODEC_DECODER | SMALL | changes)
    random = torch.Generator().manual_seed(0)

    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        scale = torch.Size(shape[1:]).numel() ** -0.5 if len(shape) > 1 else 0.1
        if name.startswith(LAST_LAYER):
            # Else most samples would be clipped.
            scale *= 0.02
        return torch.ones(shape) if "usage" in name else scale * torch.randn(shape, generator=random)

    return CodecStep(config, {n: tensor(n, s) for n, s in codec_decoder_shapes(config).items()}, torch.float32)


@dataclass
class Inputs:
    """Random tensors, equal for equal sequences of calls."""

    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, generator=self.generator)).to(self.device, self.dtype)

    def vector(self, size: int, low: float = -0.5) -> Tensor:
        return (low + torch.rand(size, generator=self.generator)).to(self.device)

    def empty(self, *shape: int) -> Tensor:
        """A tensor of NaN, to be overwritten."""
        return torch.full(shape, torch.nan, device=self.device, dtype=self.dtype)

    def product(
        self,
        outputs: int,
        channels: int,
        taps: int = 1,
        dilation: int = 1,
        norm_eps: float | None = None,
        activation: Activation = "none",
    ) -> Product:
        rows = 2 * outputs if activation == "gated" else outputs
        weight = self.normal(rows, taps * channels, scale=(taps * channels) ** -0.5)
        vectors = (self.vector(rows), self.vector(outputs, 1.0), self.vector(outputs, 1.0))
        bias = None if activation == "gated" else vectors[0]
        return Product(weight, bias, *vectors[1:], taps, dilation, norm_eps, activation)


Case = Callable[[Ops, Inputs, StepConfig], list[Tensor]]


def normed(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    return [ops.product(inputs.normal(3, 5, 64), inputs.product(96, 64, norm_eps=1e-5))]


def gated(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    return [ops.product(inputs.normal(2, 3, 64), inputs.product(64, 64, norm_eps=1e-5, activation="gated"))]


def gelu(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    return [ops.product(inputs.normal(2, 70, 64), inputs.product(96, 64, activation="gelu"))]


def dilated(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    x, layer, active = inputs.normal(2, 18 + 75, 96), inputs.product(64, 96, 7, 3), inputs.empty(2, 75 + 6, 64)[:, 6:]
    return [ops.product(x, layer, active=active), active]


def transposed(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    """Expands each position to five."""
    x, layer = inputs.normal(3, 1 + 4, 64), inputs.product(5 * 32, 64, taps=2)
    out, active = inputs.empty(3, 20, 32), inputs.empty(3, 20 + 6, 32)[:, 6:]
    return [ops.product(x, layer, out=out, active=active), active]


def residual(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    x, layer, out = inputs.normal(2, 9, 128), inputs.product(64, 128), inputs.empty(2, 9 + 6, 64)[:, 6:]
    return [ops.product(x, layer, residual=inputs.normal(2, 9 + 6, 64)[:, 6:], out=out)]


def _unit(channels: int, positions: int, keeps: bool, dilation: int = 9) -> Case:
    def unit(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
        layers = Unit(inputs.product(channels, channels, 7, dilation), inputs.product(channels, channels))
        x = inputs.normal(2, 6 * dilation + positions, channels)
        skipped = inputs.normal(2, positions, channels)
        active = inputs.empty(2, positions + 1, channels)[:, 1:]
        ops.unit(x, layers, skipped, skipped if keeps else None, active)
        return [active, skipped]

    return unit


def embedding(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    codes = torch.randint(-9, 2060, (2, 3, config.num_quantizers), generator=inputs.generator, dtype=torch.int32)
    out = inputs.empty(2, 2 + 3, 64)[:, 2:]
    ops.embed(codes.to(inputs.device), inputs.normal(config.num_quantizers * config.codebook_size, 64), out)
    return [out]


def attention(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    """Rows with an empty, a partial, a full and a negative history."""
    results = []
    for frames in (1, 5, 32):
        state, state_out = inputs.normal(4, config.state_size), inputs.normal(4, config.state_size)
        history = torch.tensor([[0], [40], [71], [-3]], dtype=torch.int32, device=inputs.device)
        results.append(ops.attend(inputs.normal(4, frames, 3 * 128), 1, state, history, state_out))
        windows = config.pieces["pre_conv"].offset
        results.append(state_out[:, :windows])
    return results


def depthwise(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    layer = Depthwise(inputs.normal(7, 96, scale=0.4).float(), inputs.vector(96))
    return [ops.depthwise(inputs.normal(2, 6 + 5, 96), layer)]


def last(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    layer = Depthwise(inputs.normal(7, 96, scale=0.04).float(), inputs.vector(1))
    return [ops.last(inputs.normal(2, 6 + 90, 96), layer)]


def histories(ops: Ops, inputs: Inputs, config: StepConfig) -> list[Tensor]:
    """The state comes back shifted by the new positions."""
    state, state_out = inputs.normal(2, config.state_size), inputs.empty(2, config.state_size)
    sequences = ops.open(state, 3)
    pasts = {name: sequence.shape[1] - 3 * config.positions[name] for name, sequence in sequences.items()}
    opened = [sequence[:, : pasts[name]].clone() for name, sequence in sequences.items()]
    for name, sequence in sequences.items():
        new = sequence[:, pasts[name] :]
        new.copy_(inputs.normal(*new.shape))
    ops.close(sequences, state_out)
    return [*opened, state_out[:, config.pieces["pre_conv"].offset :]]


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (normed, gated, gelu, dilated, transposed, residual, embedding, attention, depthwise, last, histories)
} | {"unit 96": _unit(96, 37, True), "last unit 192": _unit(192, 20, False), "unit 128": _unit(128, 20, True)}
# Units of whole tiles: one each, a few for some groups of a block, several for every group.
CASES |= {
    f"unit 96 of {positions} positions, dilation {dilation}": _unit(96, positions, dilation < 9, dilation)
    for positions, dilation in ((64, 1), (64 * 65, 3), (64 * 231, 9))
}
