"""Mimi's encoder without its transformer, as it is trained; its state_dict has the names under `encoder.`"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.demo_voice.codec.layers import Conv, Json

DOWNSAMPLE_KERNEL = 4


class Encoder(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        self.encoder = WaveEncoder(config)
        hidden = config["hidden_size"]
        self.downsample = Conv(hidden, hidden, DOWNSAMPLE_KERNEL, stride=2, bias=False, replicate=True)

    def forward(self, audio: Tensor) -> Tensor:
        """Samples [batch, 1920 time] -> [batch, time, hidden]"""
        x = audio[:, None, None].contiguous(memory_format=torch.channels_last)
        y: Tensor = self.downsample(self.encoder(x))
        return y.squeeze(2).transpose(1, 2)


class WaveEncoder(nn.Module):
    """Numbered as in the released class, which counts activations as layers."""

    def __init__(self, config: Json) -> None:
        super().__init__()
        channels = config["num_filters"]
        layers: list[nn.Module] = [Conv(1, channels, config["kernel_size"])]
        for stride in reversed(config["upsampling_ratios"]):
            unit = ResidualUnit(channels, config["residual_kernel_size"], config["compress"])
            layers += [unit, nn.ELU(), Conv(channels, 2 * channels, 2 * stride, stride=stride)]
            channels *= 2
        layers += [nn.ELU(), Conv(channels, config["hidden_size"], config["last_kernel_size"])]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, kernel: int, compress: int) -> None:
        super().__init__()
        narrow = channels // compress
        narrowing, widening = Conv(channels, narrow, kernel), Conv(narrow, channels, 1)
        self.block = nn.ModuleList([nn.ELU(), narrowing, nn.ELU(), widening])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block[3](functional.elu(self.block[1](functional.elu(x))))
        return x + y
