"""The codec as one exact stateful step: new frames and one stream's state in, audio and the next state out."""

import torch
from torch import Tensor

from code2wav_step.ops import Ops, Sequences
from code2wav_step.weights import StepWeights, TransformerLayer


class Step:
    """Computes export.modules.codec.CodecStep from folded weights with the operations of `ops`."""

    def __init__(self, weights: StepWeights, ops: Ops) -> None:
        self.weights, self.config, self.ops = weights, weights.config, ops
        self._pasts = {name: piece.shape[1] for name, piece in self.config.pieces.items()}

    @torch.inference_mode()
    def __call__(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """codes int32 [B, T, 16], state [B, S], history int32 [B, 1] -> waveform fp32 [B, samples], next state [B, S].

        T is 1..32; S and the state's layout are those of `config`.
        """
        ops, weights = self.ops, self.weights
        state_out = ops.next_state(state)
        sequences = ops.open(state, codes.shape[1])
        ops.embed(codes, weights.codebooks, self._new(sequences, "pre_conv"))
        x = ops.product(sequences["pre_conv"], weights.pre)
        for i, layer in enumerate(weights.layers):
            x = self._transform(x, i, layer, state, history, state_out)
        self._upsample(x, sequences)
        self._decode(sequences)
        ops.close(sequences, state_out)
        return ops.last(sequences["decoder.final"], weights.last), state_out

    def _transform(
        self, x: Tensor, i: int, layer: TransformerLayer, state: Tensor, history: Tensor, state_out: Tensor
    ) -> Tensor:
        ops = self.ops
        y = ops.attend(ops.product(x, layer.qkv), i, state, history, state_out)
        x = ops.product(y, layer.output, residual=x)
        return ops.product(ops.product(x, layer.gate_up), layer.down, residual=x)

    def _upsample(self, x: Tensor, sequences: Sequences) -> None:
        """Writes the input of the waveform decoder."""
        ops, last = self.ops, len(self.weights.upsamples) - 1
        for i, layer in enumerate(self.weights.upsamples):
            name = f"upsample.{i}"
            residual = ops.product(x, layer.product, out=self._new(sequences, name))
            y = ops.product(ops.depthwise(sequences[name], layer.depthwise), layer.widen)
            out = self._new(sequences, "decoder.0") if i == last else None
            x = ops.product(y, layer.narrow, residual=residual, out=out)

    def _decode(self, sequences: Sequences) -> None:
        """Writes the input of the last convolution. Each product includes the SnakeBeta that follows it."""
        ops, blocks = self.ops, self.weights.blocks
        ops.product(sequences["decoder.0"], self.weights.first, active=self._new(sequences, "decoder.1.transposed"))
        for i, block in enumerate(blocks, start=1):
            units = [f"decoder.{i}.residual.{j}" for j in range(len(block.units))]
            following = "decoder.final" if i == len(blocks) else f"decoder.{i + 1}.transposed"
            active = self._new(sequences, units[0])
            x = torch.empty(active.shape, dtype=active.dtype, device=active.device)
            ops.product(sequences[f"decoder.{i}.transposed"], block.transposed, out=x, active=active)
            for unit, name, target in zip(block.units, units, [*units[1:], following], strict=True):
                out = None if target == following else x
                ops.unit(sequences[name], unit, x, out, self._new(sequences, target))

    def _new(self, sequences: Sequences, name: str) -> Tensor:
        """The new positions of a sequence."""
        return sequences[name][:, self._pasts[name] :]
