"""The speaker encoder, ECAPA-TDNN (docs/model.md, Speaker encoder): the speaker as one vector."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.modules.codec_layers import Weights
from qwen3_tts_engine.checkpoint.checkpoint import WEIGHTS, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.configs import SpeakerEncoderConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import speaker_encoder_shapes

# As in the released class.
VARIANCE_FLOOR = 1e-12


class SpeakerEncoder(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        weights = Weights(tensors, torch.float32).under("speaker_encoder")
        dilations, last = config.enc_dilations, len(config.enc_channels) - 1
        self.first = ReflectConv(weights.under("blocks.0.conv"), dilations[0])
        self.blocks = nn.ModuleList(
            SqueezeExcitationRes2Net(weights.under(f"blocks.{i}"), config.enc_res2net_scale, dilations[i])
            for i in range(1, last)
        )
        self.merge = ReflectConv(weights.under("mfa.conv"), dilations[last])
        self.pooling = AttentivePooling(weights.under("asp"))
        self.output = ReflectConv(weights.under("fc"))

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "SpeakerEncoder":
        """Raises CheckpointError if a weight is missing or its shape differs from the configuration."""
        config = checkpoint.config.speaker_encoder_config
        return cls(config, load_tensors(checkpoint.path(WEIGHTS), speaker_encoder_shapes(config))).eval()

    def forward(self, mel: Tensor) -> Tensor:
        """Log-mel [B, frames, mel bands] -> x-vectors [B, H]. Requires at least 5 frames: the padding mirrors 4."""
        x = torch.relu(self.first(mel.transpose(1, 2)))
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        y: Tensor = self.output(self.pooling(torch.relu(self.merge(torch.cat(outputs, dim=1)))))
        return y.squeeze(2)


class ReflectConv(nn.Module):
    """A length-preserving convolution with reflect padding."""

    def __init__(self, weights: Weights, dilation: int = 1) -> None:
        super().__init__()
        self.weight, self.bias = nn.Buffer(weights["weight"]), nn.Buffer(weights["bias"])
        self.dilation = dilation
        self.padding = dilation * (self.weight.shape[2] - 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        if self.padding:
            x = functional.pad(x, (self.padding, self.padding), mode="reflect")
        # Without cuDNN, PyTorch's dilated convolution launches a kernel for each channel's bias: 1 344 in all.
        return functional.conv1d(x, self.weight, dilation=self.dilation) + self.bias[:, None]


class SqueezeExcitationRes2Net(nn.Module):
    def __init__(self, weights: Weights, scale: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        self.input = ReflectConv(weights.under("tdnn1.conv"))
        parts = weights.under("res2net_block.blocks")
        self.parts = nn.ModuleList(ReflectConv(parts.under(f"{i}.conv"), dilation) for i in range(scale - 1))
        self.output = ReflectConv(weights.under("tdnn2.conv"))
        self.squeeze = ReflectConv(weights.under("se_block.conv1"))
        self.excite = ReflectConv(weights.under("se_block.conv2"))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.output(self._res2net(torch.relu(self.input(x)))))
        mean = y.mean(dim=2, keepdim=True)
        return x + y * torch.sigmoid(self.excite(torch.relu(self.squeeze(mean))))

    def _res2net(self, x: Tensor) -> Tensor:
        """The first part unchanged; each other part convolved after adding the previous output."""
        first, *rest = x.chunk(self.scale, dim=1)
        outputs = [first]
        previous: Tensor | None = None
        for conv, part in zip(self.parts, rest, strict=True):
            previous = torch.relu(conv(part if previous is None else part + previous))
            outputs.append(previous)
        return torch.cat(outputs, dim=1)


class AttentivePooling(nn.Module):
    """Attention-weighted mean and standard deviation over time; the attention sees the unweighted ones."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.hidden = ReflectConv(weights.under("tdnn.conv"))
        self.scores = ReflectConv(weights.under("conv"))

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, frames] -> [B, 2 * channels, 1]"""
        unweighted = torch.cat([part.expand_as(x) for part in _statistics(x, torch.ones_like(x) / x.shape[2])], dim=1)
        hidden = torch.tanh(torch.relu(self.hidden(torch.cat([x, unweighted], dim=1))))
        return torch.cat(_statistics(x, self.scores(hidden).softmax(dim=2)), dim=1)


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and standard deviation over time, each [B, channels, 1]."""
    mean = (weights * x).sum(dim=2, keepdim=True)
    difference = x - mean
    variance = (weights * difference * difference).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=VARIANCE_FLOOR).sqrt()
