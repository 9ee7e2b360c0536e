"""The codec decoder as it is trained; its state_dict has the names under the released `decoder.`"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.demo_voice.codec.layers import (
    Conv,
    ConvNeXt,
    GatedMlp,
    Json,
    RmsNorm,
    Transposed,
    rotate,
    rotation,
)
from scripts.demo_voice.codec.quantizer import Quantizer
from scripts.demo_voice.codec.snake import SnakeBeta

DILATIONS = (1, 3, 9)


class Decoder(nn.Module):
    def __init__(self, config: Json, active: int) -> None:
        super().__init__()
        latent, width = config["latent_dim"], config["decoder_dim"]
        self.quantizer = Quantizer(config, active)
        self.pre_conv = Conv(config["codebook_dim"], latent, 3)
        self.pre_transformer = WindowTransformer(config)
        self.upsample = nn.ModuleList(
            nn.Sequential(Transposed(latent, latent, ratio, ratio), ConvNeXt(latent))
            for ratio in config["upsampling_ratios"]
        )
        layers: list[nn.Module] = [Conv(latent, width, 7)]
        for rate in config["upsample_rates"]:
            layers.append(Block(width, rate))
            width //= 2
        self.decoder = nn.ModuleList([*layers, SnakeBeta(width), Conv(width, 1, 7)])

    def forward(self, codes: Tensor) -> Tensor:
        """[batch, time, active codebooks] -> samples [batch, 1920 time]"""
        vectors = self.quantizer.decode(codes.flatten(0, 1))
        return self.sound(vectors.unflatten(0, codes.shape[:2]))

    def sound(self, vectors: Tensor) -> Tensor:
        """[batch, time, codebook_dim] -> samples [batch, 1920 time]"""
        x = self.pre_conv(vectors.transpose(1, 2).unsqueeze(2))
        x = self.pre_transformer(x.squeeze(2).transpose(1, 2)).transpose(1, 2).unsqueeze(2)
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in (*self.upsample, *self.decoder[:-1]):
            x = layer(x)
        with torch.autocast(x.device.type, enabled=False):
            wave: Tensor = self.decoder[-1](x.float())
        return wave.flatten(1)


class Block(nn.Module):
    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        narrow = channels // 2
        units = (ResidualUnit(narrow, dilation) for dilation in DILATIONS)
        self.block = nn.Sequential(SnakeBeta(channels), Transposed(channels, narrow, 2 * rate, rate), *units)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return y


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.conv1 = SnakeBeta(channels), Conv(channels, channels, 7, dilation=dilation)
        self.act2, self.conv2 = SnakeBeta(channels), Conv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(self.act2(self.conv1(self.act1(x))))
        return x + y


class WindowTransformer(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        self.config = config
        latent, hidden = config["latent_dim"], config["hidden_size"]
        self.input_proj, self.output_proj = nn.Linear(latent, hidden), nn.Linear(hidden, latent)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RmsNorm(hidden, config["rms_norm_eps"])

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, latent]"""
        length = x.shape[1]
        turns = rotation(length, self.config["head_dim"], self.config["rope_theta"], x.device)
        at = torch.arange(length, device=x.device)
        visible = (at <= at[:, None]) & (at > at[:, None] - self.config["sliding_window"])
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x, turns, visible)
        y: Tensor = self.output_proj(self.norm(x))
        return y


class Layer(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        hidden, eps, scale = config["hidden_size"], config["rms_norm_eps"], config["layer_scale_initial_scale"]
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(hidden, eps) for _ in range(2))
        self.self_attn, self.mlp = Attention(config), GatedMlp(hidden, config["intermediate_size"])
        self.self_attn_layer_scale, self.mlp_layer_scale = (LayerScale(hidden, scale) for _ in range(2))

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], visible: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), turns, visible))
        y: Tensor = self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return x + y


class Attention(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        hidden, self.head_dim = config["hidden_size"], config["head_dim"]
        width = config["num_attention_heads"] * self.head_dim
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(hidden, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], visible: Tensor) -> Tensor:
        query, key, value = (self._heads(linear(x)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        query, key = rotate(query, *turns), rotate(key, *turns)
        y = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        z: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return z

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(2, (-1, self.head_dim))
        return heads.transpose(1, 2)


class LayerScale(nn.Module):
    def __init__(self, size: int, value: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((size,), value))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x
