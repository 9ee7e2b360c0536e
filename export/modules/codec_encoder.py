"""The codec's encoder, Mimi's (docs/model.md, Codec encoder): 24 kHz audio to frames of 16 codes."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.modules.codec import USAGE_FLOOR
from export.modules.codec_layers import Linear, Weights
from export.modules.codec_transformer import MASKED_SCORE, rotate
from qwen3_tts_engine.checkpoint.checkpoint import SPEECH_TOKENIZER, WEIGHTS, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.configs import CodecEncoderConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import codec_encoder_shapes


class CodecEncoder(nn.Module):
    """Encodes whole frames.

    Samples after `num_samples` are padding, which each strided convolution replaces in its own way, as in the
    released class, so that the codes of a partial last frame are the same.
    """

    def __init__(self, config: CodecEncoderConfig, num_codebooks: int, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        weights = Weights(tensors, torch.float32).under("encoder")
        self.convolutions = WaveEncoder(weights.under("encoder.layers"), config)
        layers = weights.under("encoder_transformer.layers")
        self.layers = nn.ModuleList(EncoderLayer(layers.under(i), config) for i in range(config.num_hidden_layers))
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self.frequencies = nn.Buffer(1.0 / config.rope_theta**exponents)
        self.downsample = nn.Buffer(weights["downsample.conv.weight"])
        semantic, quantizers = config.num_semantic_quantizers, weights.under("quantizer")
        names = ("semantic_residual_vector_quantizer", "acoustic_residual_vector_quantizer")
        counts = (semantic, num_codebooks - semantic)
        self.quantizers = nn.ModuleList(
            ResidualQuantizer(quantizers.under(name), count) for name, count in zip(names, counts, strict=True)
        )

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "CodecEncoder":
        """Raises CheckpointError if a weight is missing or its shape differs from the configuration."""
        codec = checkpoint.speech_tokenizer
        path = checkpoint.path(f"{SPEECH_TOKENIZER}/{WEIGHTS}")
        tensors = load_tensors(path, codec_encoder_shapes(codec.encoder_config))
        return cls(codec.encoder_config, codec.encoder_valid_num_quantizers, tensors).eval()

    def forward(self, audio: Tensor, num_samples: Tensor) -> Tensor:
        """audio [B, T, 1920], num_samples int32 [B, 1] -> codes int32 [B, T, codebooks]."""
        x, length = self.convolutions(audio.flatten(1)[:, None], num_samples)
        x = self._downsample(self._transform(x.transpose(1, 2)).transpose(1, 2), length)
        # Both quantizers see the same vector: the acoustic one does not encode the semantic one's residual.
        codes = torch.cat([quantizer(x.transpose(1, 2)) for quantizer in self.quantizers], dim=2)
        return codes.to(torch.int32)

    def _transform(self, x: Tensor) -> Tensor:
        # The released class attends to the whole past; it ignores the window of its configuration.
        steps = torch.arange(x.shape[1], device=x.device)
        angles = steps[:, None].to(torch.float32) * self.frequencies
        angles = torch.cat([angles, angles], dim=1)[:, None]
        cosine, sine, future = angles.cos(), angles.sin(), steps[None] > steps[:, None]
        for layer in self.layers:
            x = layer(x, cosine, sine, future)
        return x

    def _downsample(self, x: Tensor, length: Tensor) -> Tensor:
        # Replicate padding of the first and the last sample, unlike every other convolution.
        last = torch.minimum(torch.arange(x.shape[2], device=x.device), length - 1).to(torch.int64)
        # A caller's wrong number of samples must not index outside, which ends a process that uses CUDA.
        last = last.clamp(min=0)
        x = x.gather(2, last[:, None].expand(-1, x.shape[1], -1))
        return functional.conv1d(torch.cat([x[:, :, :1], x[:, :, :1], x], dim=2), self.downsample, stride=2)


class WaveEncoder(nn.Module):
    """Convolutions from 24 kHz down to 25 Hz, numbered as in the released class."""

    def __init__(self, weights: Weights, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.first = PastConv(weights.under("0.conv"))
        self.strides = tuple(reversed(config.upsampling_ratios))
        self.residuals, self.strided = nn.ModuleList(), nn.ModuleList()
        number = 1
        for stride in self.strides:
            units = range(number, number + config.num_residual_layers)
            self.residuals.append(nn.Sequential(*(ResidualUnit(weights.under(f"{i}.block")) for i in units)))
            number += config.num_residual_layers + 1
            self.strided.append(PastConv(weights.under(f"{number}.conv"), stride))
            number += 1
        self.last = PastConv(weights.under(f"{number + 1}.conv"))

    def forward(self, x: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 1, samples] and valid length int32 [B, 1] -> [B, channels, steps] and its valid length."""
        x = self.first(x)
        for residual, strided, stride in zip(self.residuals, self.strided, self.strides, strict=True):
            x = functional.elu(residual(x))
            padding = torch.arange(x.shape[2], device=x.device) >= length
            x = strided(x.masked_fill(padding[:, None], 0.0))
            length = (length + (stride - 1)) // stride
        return self.last(functional.elu(x)), length


class PastConv(nn.Module):
    """A causal convolution with zero padding before the first sample."""

    def __init__(self, weights: Weights, stride: int = 1) -> None:
        super().__init__()
        self.weight, self.bias = nn.Buffer(weights["weight"]), nn.Buffer(weights["bias"])
        self.stride = stride
        self.padding = self.weight.shape[2] - stride

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv1d(functional.pad(x, (self.padding, 0)), self.weight, self.bias, stride=self.stride)


class ResidualUnit(nn.Module):
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.narrow, self.widen = PastConv(weights.under("1.conv")), PastConv(weights.under("3.conv"))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.widen(functional.elu(self.narrow(functional.elu(x))))
        return x + y


class LayerNorm(nn.Module):
    def __init__(self, weights: Weights, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Buffer(weights["weight"]), nn.Buffer(weights["bias"])
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class EncoderLayer(nn.Module):
    def __init__(self, weights: Weights, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.head_dim, self.groups = config.head_dim, config.num_attention_heads // config.num_key_value_heads
        self.attention_norm = LayerNorm(weights.under("input_layernorm"), config.norm_eps)
        self.query, self.key, self.value, self.output = (
            Linear(weights.under(f"self_attn.{name}_proj")) for name in "qkvo"
        )
        self.attention_scale = nn.Buffer(weights["self_attn_layer_scale.scale"])
        self.mlp_norm = LayerNorm(weights.under("post_attention_layernorm"), config.norm_eps)
        self.widen, self.narrow = Linear(weights.under("mlp.fc1")), Linear(weights.under("mlp.fc2"))
        self.mlp_scale = nn.Buffer(weights["mlp_layer_scale.scale"])

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, future: Tensor) -> Tensor:
        x = x + self.attention_scale * self._attend(self.attention_norm(x), cosine, sine, future)
        y: Tensor = self.narrow(functional.gelu(self.widen(self.mlp_norm(x))))
        return x + self.mlp_scale * y

    def _attend(self, x: Tensor, cosine: Tensor, sine: Tensor, future: Tensor) -> Tensor:
        query, keys = (rotate(self._heads(linear(x)), cosine, sine) for linear in (self.query, self.key))
        keys, values = (y.repeat_interleave(self.groups, dim=2) for y in (keys, self._heads(self.value(x))))
        scores = query.transpose(1, 2) @ keys.permute(0, 2, 3, 1) * self.head_dim**-0.5
        y = scores.masked_fill(future, MASKED_SCORE).softmax(dim=-1) @ values.transpose(1, 2)
        z: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return z

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(2, (-1, self.head_dim))
        return heads


class ResidualQuantizer(nn.Module):
    """Each codebook encodes the residual of those before it."""

    def __init__(self, weights: Weights, count: int) -> None:
        super().__init__()
        self.projection = nn.Buffer(weights["input_proj.weight"][:, :, 0])
        codebooks = []
        for i in range(count):
            codebook = weights.under(f"layers.{i}.codebook")
            codebooks.append(codebook["embed_sum"] / codebook["cluster_usage"].clamp(min=USAGE_FLOOR)[:, None])
        self.codebooks = nn.Buffer(torch.stack(codebooks))
        self.half_norms = nn.Buffer((self.codebooks * self.codebooks).sum(dim=2) / 2)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden] -> codes int64 [B, T, codebooks]"""
        x = functional.linear(x, self.projection)
        codes = []
        for codebook, half_norm in zip(self.codebooks, self.half_norms, strict=True):
            # The nearest entry: |x|² is the same for all, so the largest x·e - |e|²/2.
            code = (functional.linear(x, codebook) - half_norm).argmax(dim=-1)
            x = x - functional.embedding(code, codebook)
            codes.append(code)
        return torch.stack(codes, dim=2)
