"""The codec as one exact stateful step (docs/model.md, Codec decoder): the source of every form of code2wav."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from export.modules.codec_layers import CausalConv, ConvNeXt, DecoderBlock, SnakeBeta, Upsample, Weights
from export.modules.codec_transformer import WindowTransformer
from qwen3_tts_engine.checkpoint.checkpoint import SPEECH_TOKENIZER, WEIGHTS, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import codec_decoder_shapes
from qwen3_tts_engine.codec.contract import state_layout, state_size

# Lower bound of the usage count that divides a codebook entry, as in the released class.
USAGE_FLOOR = 1e-5


class CodecStep(nn.Module):
    """Decodes the next frames of each stream. Requires no left context; consecutive chunks join without a seam.

    codec.contract.state_layout defines `state`. The waveform is not clamped to -1..1: TensorRT for RTX cannot compile a
    clamp after the last convolution, so the conversion to PCM clamps.
    """

    def __init__(self, config: CodecDecoderConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.layout = state_layout(config)
        weights = Weights(tensors, dtype).under("decoder")
        self.codebooks = Codebooks(weights.under("quantizer"), config)
        self.pre_conv = CausalConv(weights.under("pre_conv.conv"))
        self.transformer = WindowTransformer(weights.under("pre_transformer"), config)
        upsample = [weights.under(f"upsample.{i}") for i in range(len(config.upsampling_ratios))]
        self.upsamples = nn.ModuleList(Upsample(stage.under("0.conv")) for stage in upsample)
        self.convnexts = nn.ModuleList(ConvNeXt(stage.under(1)) for stage in upsample)
        decoder, stages = weights.under("decoder"), len(config.upsample_rates)
        self.first_conv = CausalConv(decoder.under("0.conv"))
        self.blocks = nn.ModuleList(DecoderBlock(decoder.under(f"{i}.block")) for i in range(1, stages + 1))
        self.snake = SnakeBeta(decoder.under(stages + 1))
        self.last_conv = CausalConv(decoder.under(f"{stages + 2}.conv"))

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> "CodecStep":
        """Raises CheckpointError if a weight is missing or its shape differs from the configuration."""
        config = checkpoint.speech_tokenizer.decoder_config
        path = checkpoint.path(f"{SPEECH_TOKENIZER}/{WEIGHTS}")
        return cls(config, load_tensors(path, codec_decoder_shapes(config)), dtype).eval()

    @property
    def state_size(self) -> int:
        return state_size(self.config)

    def forward(self, codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """codes int32 [B, T, 16], state [B, S], history int32 [B, 1] -> waveform fp32 [B, 1920 T], next state [B, S].

        T is 1..32. `history` is the number of valid frames in the state's window; 0 with a zero state starts a stream.
        """
        pieces = self._unpack(state)
        x, pieces["pre_conv"] = self.pre_conv(self.codebooks(codes).transpose(1, 2), pieces["pre_conv"])
        x, pieces["keys"], pieces["values"] = self.transformer(
            x.transpose(1, 2), pieces["keys"], pieces["values"], history
        )
        waveform = self._wave(x.transpose(1, 2), pieces)
        return waveform.flatten(1).float(), self._pack(pieces)

    def _wave(self, x: Tensor, pieces: dict[str, Tensor]) -> Tensor:
        for i, (upsample, convnext) in enumerate(zip(self.upsamples, self.convnexts, strict=True)):
            x, pieces[f"upsample.{i}"] = convnext(upsample(x), pieces[f"upsample.{i}"])
        x, pieces["decoder.0"] = self.first_conv(x, pieces["decoder.0"])
        for i, block in enumerate(self.blocks, start=1):
            names = [name for name in pieces if name.startswith(f"decoder.{i}.")]
            x, pasts = block(x, [pieces[name] for name in names])
            pieces.update(zip(names, pasts, strict=True))
        waveform: Tensor
        waveform, pieces["decoder.final"] = self.last_conv(self.snake(x), pieces["decoder.final"])
        return waveform

    def _unpack(self, state: Tensor) -> dict[str, Tensor]:
        parts = state.split([piece.size for piece in self.layout], dim=1)
        return {piece.name: part.unflatten(1, piece.shape) for piece, part in zip(self.layout, parts, strict=True)}

    def _pack(self, pieces: dict[str, Tensor]) -> Tensor:
        return torch.cat([pieces[piece.name].flatten(1) for piece in self.layout], dim=1)


class Codebooks(nn.Module):
    """The 16 codebooks folded with their output projections into one table; a frame is the sum of 16 rows."""

    def __init__(self, weights: Weights, config: CodecDecoderConfig) -> None:
        super().__init__()
        tables = fold(weights.under("rvq_first"), 1) + fold(weights.under("rvq_rest"), config.num_quantizers - 1)
        self.table = nn.Buffer(torch.cat(tables).to(weights.dtype))
        self.offsets = nn.Buffer(torch.arange(config.num_quantizers, dtype=torch.int32) * config.codebook_size)
        self.largest = config.codebook_size - 1

    def forward(self, codes: Tensor) -> Tensor:
        # Clamp invalid codes so that one bad row cannot read out of bounds and fail the batch.
        rows = codes.clamp(0, self.largest) + self.offsets
        return nn.functional.embedding(rows, self.table).sum(dim=2)


def fold(weights: Weights, count: int) -> list[Tensor]:
    """The first `count` codebooks of a quantizer after its output projection, each fp32 [codes, codebook_dim]."""
    projection = weights.exact("output_proj.weight")[:, :, 0]
    tables = []
    for i in range(count):
        codebook = weights.under(f"vq.layers.{i}._codebook")
        usage = codebook.exact("cluster_usage").clamp(min=USAGE_FLOOR)
        tables.append(codebook.exact("embedding_sum") / usage[:, None] @ projection.T)
    return tables
