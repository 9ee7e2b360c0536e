"""The codec step as an ONNX graph, node by node, in the order of export/modules.

PyTorch's exporter writes the same operations in ten times the time, since it traces each of them three times with
symbolic sizes. The verification compares the graph with the modules.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from code2wav_step.onnx_runner import INPUTS, OUTPUTS
from export.modules.codec import Codebooks, CodecStep
from export.modules.codec_layers import (
    LAYER_NORM_EPS,
    CausalConv,
    ConvNeXt,
    Linear,
    ResidualUnit,
    SnakeBeta,
    TransposedConv,
    Upsample,
)
from export.modules.codec_transformer import MASKED_SCORE, Attention, GatedMlp, RmsNorm, SlotTables, WindowTransformer
from qwen3_tts_engine.audio import NUM_CODEBOOKS
from qwen3_tts_engine.talker.onnx_graph import OnnxGraph, Value, rms_norm

# The end of a slice that goes to the last element.
END = torch.iinfo(torch.int64).max
Slots = tuple[Value, Value, Value, Value, Value]
"""Cosine and sine of the frames' slots, of all slots [slots, 1, D], and which slots a frame sees [B, 1, T, slots]."""


def codec_graph(step: CodecStep) -> OnnxGraph:
    """The step in FP32 for any batch B and any chunk length T."""
    graph = OnnxGraph("codec")
    codes, state, history = INPUTS
    outputs = CodecWriter(graph).step(
        step,
        graph.input(codes, ["B", "T", NUM_CODEBOOKS], torch.int32),
        graph.input(state, ["B", step.state_size]),
        graph.input(history, ["B", 1], torch.int32),
    )
    for name, value in zip(OUTPUTS, outputs, strict=True):
        graph.output(name, value)
    return graph


class CodecWriter:
    """Writes each module's forward pass; sequences are [B, channels, time], hidden states [B, T, channels]."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph, self._op = graph, graph.op

    def step(self, step: CodecStep, codes: Value, state: Value, history: Value) -> tuple[Value, Value]:
        """The waveform [B, samples], and the next state [B, S]."""
        (keys, values, *convolved), layers = step.layout, len(step.transformer.layers)
        # Windows of keys and of values, by layer.
        windows = [window for piece in (keys, values) for window in [piece.size // layers] * layers]
        parts = self._graph.split(state, [*windows, *(piece.size for piece in convolved)])
        pasts = iter(
            self._reshape(part, 0, *piece.shape) for part, piece in zip(parts[len(windows) :], convolved, strict=True)
        )
        nexts = list[Value]()

        def conv(module: CausalConv | TransposedConv, x: Value) -> Value:
            y, following = self._conv(module, x, pasts)
            nexts.append(following)
            return y

        x = conv(step.pre_conv, self._turned(self._codebooks(step.codebooks, codes)))
        x, next_windows = self._transformer(step.transformer, self._turned(x), codes, history, parts[: len(windows)])
        x = self._turned(x)
        for upsample, convnext in zip(step.upsamples, step.convnexts, strict=True):
            x = self._upsample(upsample, x)  # type: ignore[arg-type]
            x = self._convnext(convnext, x, conv(convnext.depthwise, x))  # type: ignore[arg-type]
        x = conv(step.first_conv, x)
        for block in step.blocks:
            x = conv(block.transposed, self._snake(block.snake, x))  # type: ignore[arg-type]
            for unit in block.units:  # type: ignore[union-attr]
                x = self._unit(unit, x, conv(unit.conv, self._snake(unit.snake_in, x)))
        waveform = conv(step.last_conv, self._snake(step.snake, x))
        following = [self._reshape(value, 0, -1) for value in (*next_windows, *nexts)]
        return self._reshape(waveform, 0, -1), self._op("Concat", *following, axis=1)

    def _codebooks(self, module: Codebooks, codes: Value) -> Value:
        bounds = [self._weight(torch.tensor(bound, dtype=torch.int32)) for bound in (0, module.largest)]
        rows = self._op("Add", self._op("Clip", codes, *bounds), self._weight(module.offsets))
        return self._op(
            "ReduceSum", self._op("Gather", self._weight(module.table), rows), self._graph.integers(2), keepdims=0
        )

    def _conv(self, module: CausalConv | TransposedConv, x: Value, pasts: Iterator[Value]) -> tuple[Value, Value]:
        """Also the next past; takes its own from `pasts`."""
        joined = self._op("Concat", next(pasts), x, axis=2)
        if isinstance(module, TransposedConv):
            pairs = self._op("Concat", self._slice(joined, 0, -1, axis=2), x, axis=1)
            return self._upsampled(module.weight, module.bias, module.rate, pairs), self._slice(joined, -1, axis=2)
        past = (module.weight.shape[2] - 1) * module.dilation
        options = {"dilations": [module.dilation], "group": module.groups}
        return self._convolved(joined, module.weight, module.bias, **options), self._slice(joined, -past, axis=2)

    def _convolved(self, x: Value, weight: Tensor, bias: Tensor, **options: Any) -> Value:
        return self._op("Conv", x, self._weight(weight), self._weight(bias), kernel_shape=[weight.shape[2]], **options)

    def _upsample(self, module: Upsample, x: Value) -> Value:
        return self._upsampled(module.weight, module.bias, module.factor, x)

    def _upsampled(self, weight: Tensor, bias: Tensor, rate: int, x: Value) -> Value:
        """[B, channels, time] -> [B, outputs, time * rate]"""
        product = self._op("MatMul", self._weight(weight), x)
        phases = self._reshape(product, 0, len(weight) // rate, rate, -1)
        interleaved = self._reshape(self._op("Transpose", phases, perm=[0, 1, 3, 2]), 0, len(weight) // rate, -1)
        return self._op("Add", interleaved, self._weight(bias))

    def _snake(self, module: SnakeBeta, x: Value) -> Value:
        sine = self._op("Sin", self._op("Mul", x, self._weight(module.alpha)))
        square = self._op("Mul", sine, sine)
        return self._op("Add", x, self._op("Mul", square, self._weight(module.inverse_beta)))

    def _unit(self, unit: ResidualUnit, x: Value, y: Value) -> Value:
        """`y` is what its first convolution gives."""
        return self._op("Add", x, self._convolved(self._snake(unit.snake_out, y), unit.weight, unit.bias))

    def _convnext(self, module: ConvNeXt, x: Value, y: Value) -> Value:
        """`y` is what its depthwise convolution gives."""
        norm = (self._weight(module.norm_weight), self._weight(module.norm_bias))
        y = self._op("LayerNormalization", self._turned(y), *norm, axis=-1, epsilon=LAYER_NORM_EPS)
        y = self._linear(module.narrow, self._op("Gelu", self._linear(module.widen, y)))
        return self._op("Add", x, self._turned(self._op("Mul", y, self._weight(module.gamma))))

    def _transformer(
        self, module: WindowTransformer, x: Value, codes: Value, history: Value, windows: Sequence[Value]
    ) -> tuple[Value, list[Value]]:
        """Also the next windows; `windows` are the layers' keys, then their values, each [B, width]."""
        slots, layers = self._slots(module.tables, codes, history), len(module.layers)
        x, keys, values = self._linear(module.input, x), list[Value](), list[Value]()
        for i, layer in enumerate(module.layers):
            normed = self._rms_norm(layer.attention_norm, x)  # type: ignore[arg-type]
            past = (windows[i], windows[layers + i])
            y, key, value = self._attention(layer.attention, normed, past, module.tables.window, slots)  # type: ignore[arg-type]
            keys.append(key)
            values.append(value)
            x = self._op("Add", x, self._op("Mul", y, self._weight(layer.attention_scale)))  # type: ignore[arg-type]
            y = self._mlp(layer.mlp, self._rms_norm(layer.mlp_norm, x))  # type: ignore[arg-type]
            x = self._op("Add", x, self._op("Mul", y, self._weight(layer.mlp_scale)))  # type: ignore[arg-type]
        return self._linear(module.output, self._rms_norm(module.norm, x)), [*keys, *values]

    def _slots(self, tables: SlotTables, codes: Value, history: Value) -> Slots:
        zero, window = self._graph.integers(0), self._graph.integers(tables.window)
        frames = self._op("Shape", codes, start=1, end=2)
        slots = self._op("Add", frames, window)
        cosine, sine = self._weight(tables.cosine), self._weight(tables.sine)
        of_frames = [self._op("Slice", table, window, slots, zero) for table in (cosine, sine)]
        of_all = [self._op("Slice", table, zero, slots, zero) for table in (cosine, sine)]
        corner = [self._graph.integers(0, 0), self._op("Concat", frames, slots, axis=0)]
        band = self._op("Slice", self._weight(tables.band), *corner, self._graph.integers(0, 1))
        needed = self._op("Slice", self._weight(tables.needed_history), zero, slots, zero)
        least = self._op("Max", history, self._weight(torch.tensor(0, dtype=torch.int32)))
        valid = self._op("Unsqueeze", self._op("LessOrEqual", needed, least), self._graph.integers(1, 2))
        return (*of_frames, *of_all, self._op("And", band, valid))  # type: ignore[return-value]

    def _attention(
        self, module: Attention, x: Value, past: tuple[Value, Value], window: int, slots: Slots
    ) -> tuple[Value, Value, Value]:
        """Also the next windows of keys and of values."""
        frame_cosine, frame_sine, cosine, sine, visible = slots
        query, key, value = (
            self._reshape(self._linear(part, x), 0, 0, -1, module.head_dim)
            for part in (module.query, module.key, module.value)
        )
        keys, values = (
            self._op("Concat", self._reshape(before, 0, window, -1, module.head_dim), now, axis=1)
            for before, now in zip(past, (key, value), strict=True)
        )
        query = self._op("Transpose", self._rotated(query, frame_cosine, frame_sine), perm=[0, 2, 1, 3])
        turned = self._op("Transpose", self._rotated(keys, cosine, sine), perm=[0, 2, 3, 1])
        scores = self._op("Mul", self._op("MatMul", query, turned), self._graph.floats(module.head_dim**-0.5))
        shares = self._op("Softmax", self._op("Where", visible, scores, self._graph.floats(MASKED_SCORE)), axis=-1)
        y = self._op("MatMul", shares, self._op("Transpose", values, perm=[0, 2, 1, 3]))
        y = self._linear(module.output, self._reshape(self._op("Transpose", y, perm=[0, 2, 1, 3]), 0, 0, -1))
        return y, self._slice(keys, -window, axis=1), self._slice(values, -window, axis=1)

    def _rotated(self, x: Value, cosine: Value, sine: Value) -> Value:
        first, second = self._graph.ops("Split", 2, x, axis=-1, num_outputs=2)
        turned = self._op("Concat", self._op("Neg", second), first, axis=-1)
        return self._op("Add", self._op("Mul", x, cosine), self._op("Mul", turned, sine))

    def _mlp(self, module: GatedMlp, x: Value) -> Value:
        gated = self._op("Mul", self._op("Swish", self._linear(module.gate, x)), self._linear(module.up, x))
        return self._linear(module.down, gated)

    def _rms_norm(self, module: RmsNorm, x: Value) -> Value:
        return rms_norm(self._graph, x, module.weight, module.eps)

    def _linear(self, module: Linear, x: Value) -> Value:
        product = self._op("MatMul", x, self._weight(module.weight.T))
        return product if module.bias is None else self._op("Add", product, self._weight(module.bias))

    def _turned(self, x: Value) -> Value:
        """[B, a, b] -> [B, b, a]"""
        return self._op("Transpose", x, perm=[0, 2, 1])

    def _reshape(self, x: Value, *shape: int) -> Value:
        """0 keeps a dimension, -1 is what is left."""
        return self._op("Reshape", x, self._graph.integers(*shape))

    def _slice(self, x: Value, start: int, end: int = END, *, axis: int) -> Value:
        return self._op("Slice", x, *(self._graph.integers(value) for value in (start, end, axis)))

    def _weight(self, tensor: Tensor) -> Value:
        return self._graph.weight(tensor.contiguous())
