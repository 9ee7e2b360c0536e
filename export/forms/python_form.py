"""code2wav as folded weights, which Triton's Python backend runs with the package code2wav_step."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from code2wav_step import startup
from code2wav_step.config import Contract, StepConfig
from export.agreement import Agreement
from export.forms.form import Form
from export.forms.program_form import PROGRAM
from export.modules.codec import CodecStep
from export.modules.codec_layers import CausalConv, ConvNeXt, DecoderBlock, Linear, ResidualUnit, SnakeBeta, Upsample
from export.modules.codec_transformer import Layer, RmsNorm
from export.verify import StepFunction
from qwen3_tts_engine.checkpoint.configs import CONV_KERNEL, PRE_CONV_KERNEL, RESIDUAL_DILATIONS, CodecDecoderConfig
from qwen3_tts_engine.codec.contract import max_history, state_layout, terms

Named = Iterator[tuple[str, Tensor]]


def step_config(config: CodecDecoderConfig) -> StepConfig:
    return StepConfig(
        contract=Contract(**terms()),  # type: ignore[arg-type]
        codebook_size=config.codebook_size,
        num_quantizers=config.num_quantizers,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        window=max_history(config),
        rope_theta=config.rope_theta,
        rms_norm_eps=config.rms_norm_eps,
        conv_kernel=CONV_KERNEL,
        pre_conv_kernel=PRE_CONV_KERNEL,
        residual_dilations=RESIDUAL_DILATIONS,
        upsampling_ratios=config.upsampling_ratios,
        upsample_rates=config.upsample_rates,
        layout=tuple((piece.name, piece.shape) for piece in state_layout(config)),
    )


def folded(step: CodecStep) -> dict[str, Tensor]:
    """The tensors of code2wav_step.weights in FP32, from a step in FP32 (see there)."""
    return {name: tensor.float().contiguous() for name, tensor in _tensors(step)}


def _tensors(step: CodecStep) -> Named:
    transformer = step.transformer
    yield "codebooks", step.codebooks.table
    # Adjacent linear maps, folded into one.
    entry, pre = transformer.input, step.pre_conv
    yield "pre.weight", torch.einsum("oi,ict->otc", entry.weight, pre.weight).flatten(1)
    yield "pre.bias", entry.weight @ pre.bias + _bias(entry)
    for i, layer in enumerate(transformer.layers):
        yield from _prefixed(f"layers.{i}", _layer(cast(Layer, layer)))
    for i, (module, convnext) in enumerate(zip(step.upsamples, step.convnexts, strict=True)):
        upsample = cast(Upsample, module)
        # [channels · factor, inputs] becomes [factor · channels, inputs]: a product then writes whole positions.
        weight, bias = _phases(upsample.weight, upsample.factor), upsample.bias.flatten().tile(upsample.factor)
        if i == 0:
            weight, bias = weight @ transformer.output.weight, weight @ _bias(transformer.output) + bias
            weight = _normed(weight, transformer.norm)
        yield f"upsample.{i}.product.weight", weight
        yield f"upsample.{i}.product.bias", bias
        yield from _prefixed(f"upsample.{i}", _convnext(cast(ConvNeXt, convnext)))
    blocks = [cast(DecoderBlock, block) for block in step.blocks]
    yield from _conv("first", step.first_conv, blocks[0].snake)
    for i, block in enumerate(blocks):
        following = blocks[i + 1].snake if i + 1 < len(blocks) else step.snake
        yield from _prefixed(f"blocks.{i}", _block(block, following))
    yield "last.weight", step.last_conv.weight[0].T
    yield "last.bias", step.last_conv.bias


def _layer(layer: Layer) -> Named:
    attention, mlp = layer.attention, layer.mlp
    qkv = torch.cat([attention.query.weight, attention.key.weight, attention.value.weight])
    yield "qkv.weight", _normed(qkv, layer.attention_norm)
    yield "output.weight", layer.attention_scale[:, None] * attention.output.weight
    yield "gate_up.weight", _normed(torch.cat([mlp.gate.weight, mlp.up.weight]), layer.mlp_norm)
    yield "down.weight", layer.mlp_scale[:, None] * mlp.down.weight


def _convnext(layer: ConvNeXt) -> Named:
    yield "depthwise.weight", layer.depthwise.weight[:, 0].T
    yield "depthwise.bias", layer.depthwise.bias
    yield "widen.weight", layer.widen.weight * layer.norm_weight
    yield "widen.bias", layer.widen.weight @ layer.norm_bias + _bias(layer.widen)
    yield "narrow.weight", layer.gamma[:, None] * layer.narrow.weight
    yield "narrow.bias", layer.gamma * _bias(layer.narrow)


def _block(block: DecoderBlock, following: SnakeBeta) -> Named:
    transposed, units = block.transposed, [cast(ResidualUnit, unit) for unit in block.units]
    yield "transposed.weight", _phases(transposed.weight, transposed.rate)
    yield "transposed.bias", transposed.bias.flatten().tile(transposed.rate)
    yield from _snake("transposed", units[0].snake_in, transposed.rate)
    for j, unit in enumerate(units):
        yield from _conv(f"units.{j}.conv", unit.conv, unit.snake_out)
        yield f"units.{j}.pointwise.weight", unit.weight[:, :, 0]
        yield f"units.{j}.pointwise.bias", unit.bias
        yield from _snake(f"units.{j}.pointwise", units[j + 1].snake_in if j + 1 < len(units) else following)


def _conv(name: str, conv: CausalConv, snake: SnakeBeta) -> Named:
    yield f"{name}.weight", conv.weight.transpose(1, 2).flatten(1)
    yield f"{name}.bias", conv.bias
    yield from _snake(name, snake)


def _snake(name: str, snake: SnakeBeta, repeats: int = 1) -> Named:
    yield f"{name}.alpha", snake.alpha.flatten().tile(repeats)
    yield f"{name}.inverse_beta", snake.inverse_beta.flatten().tile(repeats)


def _phases(weight: Tensor, rate: int) -> Tensor:
    """[channels · rate, inputs] -> [rate · channels, inputs]"""
    phases: Tensor = weight.unflatten(0, (-1, rate))
    return phases.transpose(0, 1).flatten(0, 1)


def _normed(weight: Tensor, norm: RmsNorm) -> Tensor:
    folded_in: Tensor = weight * norm.weight
    return folded_in


def _bias(linear: Linear) -> Tensor:
    assert linear.bias is not None
    return linear.bias


def _prefixed(prefix: str, tensors: Named) -> Named:
    return ((f"{prefix}.{name}", tensor) for name, tensor in tensors)


def build(step: CodecStep, path: Path) -> None:
    tensors = {
        name: tensor.half() if tensor.ndim == 2 and not name.startswith("last.") else tensor
        for name, tensor in folded(step).items()
    }
    save_file({name: t.contiguous() for name, t in tensors.items()}, path, step_config(step.config).to_metadata())


def load(path: Path) -> StepFunction:
    """The file as it is served: kernels and graphs on a GPU, FP32 arithmetic without one."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    return as_step(startup.make_runner(startup.load_weights(path, device), device))


def as_step(runner: startup.TorchStepRunner) -> StepFunction:
    """The runner as called for a request, but with FP32 states."""
    dtype = runner.step.weights.codebooks.dtype

    @torch.inference_mode()
    def run(codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        borrowed = runner.lend(codes.cpu(), state.to(dtype), history.cpu())
        waveform, state_out = (tensor.to(torch.float32, copy=True) for tensor in borrowed)
        for tensor in borrowed:
            tensor.fill_(math.nan)  # so that stale values cannot pass for the next run's output
        return waveform, state_out

    return run


PYTHON = Form(
    name="python",
    filename="model.safetensors",
    state_dtype="FP16",
    opset=None,
    limit=Agreement(max_error=5e-2, snr_db=30.0),
    build=build,
    load=load,
    encoders=PROGRAM,
)
