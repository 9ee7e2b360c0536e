"""Initial scales of the codec's layers."""

from typing import Any

import torch
from torch import Tensor, nn

from scripts.demo_voice.codec.decoder import Decoder, ResidualUnit
from scripts.demo_voice.codec.encoder import Encoder
from scripts.demo_voice.codec.encoder import ResidualUnit as EncoderUnit
from scripts.demo_voice.codec.layers import Conv, Transposed

BRANCH, LAST = 0.3, 0.1


@torch.no_grad()
def calibrate(encoder: Encoder, decoder: Decoder, samples: Tensor) -> None:
    """Scales every convolution to an output of unit deviation; the ends of branches and of the decoder to less."""
    targets: dict[nn.Module, float] = {}
    for module in (*encoder.modules(), *decoder.modules()):
        if isinstance(module, Conv | Transposed):
            targets.setdefault(module, 1.0)
        if isinstance(module, ResidualUnit):
            targets[module.conv2] = BRANCH
        if isinstance(module, EncoderUnit):
            targets[module.block[3]] = BRANCH
    targets[decoder.decoder[-1]] = LAST
    handles = [module.register_forward_hook(_scale(target)) for module, target in targets.items()]
    vectors = decoder.quantizer.unquantized(encoder(samples).flatten(0, 1)).vectors
    decoder.sound(vectors.unflatten(0, (len(samples), -1)))
    for handle in handles:
        handle.remove()


def _scale(target: float) -> Any:
    def hook(module: Any, _: Any, output: Tensor) -> Tensor:
        factor = target / output.float().std().clamp(min=1e-6)
        module.conv.weight.mul_(factor)
        return output * factor

    return hook
