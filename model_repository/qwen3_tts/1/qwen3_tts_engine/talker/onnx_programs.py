"""A tick as two ONNX graphs: the talker over rows of each stream, and the frame that follows from its last state.

They compute what talker.py, code_predictor.py and sampling.py do, in float32.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qwen3_tts_engine.config import CpuWeights
from qwen3_tts_engine.talker.code_predictor import CodePredictor
from qwen3_tts_engine.talker.kv_cache import FrameCache, PagedCache
from qwen3_tts_engine.talker.onnx_graph import OWN, OnnxGraph, Value, rms_norm
from qwen3_tts_engine.talker.talker import Talker
from qwen3_tts_engine.talker.transformer import Transformer
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear

MASKED = float("-inf")
NO_PAST = ("", "")
Terms = tuple[Value] | tuple[Value, Value]
"""A value, or two to be added."""
Attend = Callable[[Value, Value, Value], Value]
"""Attention of one layer over query, key and value, each [B, N, heads·D] → [B, N, q heads·D]."""


def talker_graph(
    talker: Talker, cache: PagedCache, heads: Sequence[tuple[int, int]] = (), weights: CpuWeights = "float32"
) -> OnnxGraph:
    """The talker's stack over N consecutive rows of each of B streams.

    Inputs: `rows` float32 [B, N, H], `positions` int64 [B, N] and `index` int64 [B, T], the place in the cache of each
    position, at least up to the last row's; `keys_<layer>` and `values_<layer>`, the cache [places, kv heads·D].
    Outputs: `hidden` [B, N, H] before the final norm, and `stored` [2·layers, B, N, kv heads·D], keys and values of the
    rows, layer by layer; with `heads`, layer and head in order of layers, also `queries` [heads, B, N, D].
    """
    graph, config = OnnxGraph("talker", weights), cache.config
    stack = Stack(graph, talker.transformer, cache)
    terms: Terms = (graph.input("rows", ["B", "N", config.hidden_size]),)
    positions = graph.input("positions", ["B", "N"], torch.int64)
    index = graph.input("index", ["B", "T"], torch.int64)
    start = graph.op("Squeeze", graph.op("Gather", positions, graph.integers(0), axis=1), graph.integers(1))
    length = graph.op("Squeeze", graph.op("Shape", index, start=1))
    past = graph.op("Range", graph.integer(0), length, graph.integer(1))
    visible = graph.op("LessOrEqual", past, graph.op("Unsqueeze", positions, graph.integers(1, 3)))
    mask = graph.op("Where", visible, graph.floats(0.0), graph.floats(MASKED))
    width = config.key_value_size
    stored: list[Value] = []
    queries: list[Value] = []

    def attend_in(layer: int) -> Attend:
        pools = [graph.input(f"{name}_{layer}", ["places", width]) for name in ("keys", "values")]
        pasts = [graph.op("Gather", pool, index, axis=0) for pool in pools]

        def attend(query: Value, key: Value, value: Value) -> Value:
            stored.extend((key, value))
            queries.extend(
                _slice(graph, query, head * config.head_dim, config.head_dim) for of, head in heads if of == layer
            )
            # Ordered by position, so that a row's arithmetic does not depend on the longest stream's length.
            keys, values = (
                graph.op("TensorScatter", past, rows, start, axis=1)
                for past, rows in zip(pasts, (key, value), strict=True)
            )
            return stack.attention(query, keys, values, mask)

        return attend

    for layer in range(len(talker.transformer.layers)):
        terms = stack.layer(layer, terms, positions, attend_in(layer))
    graph.output("hidden", graph.op("Add", *terms))
    graph.output("stored", _stack(graph, stored))
    if queries:
        graph.output("queries", _stack(graph, queries))
    return graph


def frame_graph(
    talker: Talker,
    predictor: CodePredictor,
    cache: FrameCache,
    weights: CpuWeights = "float32",
    *,
    with_logits: bool = False,
) -> OnnxGraph:
    """The codes of a frame of each of B streams, from the talker's last state.

    Inputs: `hidden` [B, H] before the final norm; `uniform` [B, codebooks], 0 in a greedy row; `places` int64
    [B, codebooks], 0, 1, ...; those of `_first_logits`, and those of Draw for `first` and `others`. Output: `codes`
    int64 [B, codebooks], of which the first is the number of codes at the end of an utterance; `with_logits`, also
    `logits` [codebooks, B, codes], for measurements.
    """
    graph, config, codebooks = OnnxGraph("frame", weights), predictor.config, predictor.num_codebooks
    stack = Stack(graph, predictor.transformer, cache)
    hidden = graph.input("hidden", ["B", talker.config.hidden_size])
    uniform = graph.split(graph.input("uniform", ["B", codebooks]), [1] * codebooks)
    places = graph.split(graph.input("places", ["B", codebooks], torch.int64), [2, *[1] * (codebooks - 2)])
    draw_first, draw = Draw(graph, "first"), Draw(graph, "others")
    pasts: list[Sequence[Value]] = [NO_PAST for _ in predictor.transformer.layers]

    def attend_in(layer: int, mask: Value) -> Attend:
        def attend(query: Value, key: Value, value: Value) -> Value:
            out, *pasts[layer] = stack.attention_over(pasts[layer], query, key, value, mask)
            return out

        return attend

    logits = [_first_logits(graph, talker, hidden, config.vocab_size)]
    codes = [draw_first(logits[0], uniform[0])]
    drawable = _drawable(predictor.inputs, talker, config.vocab_size)
    first = [graph.op("Unsqueeze", _project(graph, predictor, hidden), graph.integers(1))]
    first.append(graph.op("Gather", graph.weight(drawable), codes[0]))
    terms: Terms = (graph.op("Concat", *first, axis=1),)
    mask = graph.floats([[0.0, MASKED], [0.0, 0.0]])
    for codebook in range(1, codebooks):
        for layer in range(len(pasts)):
            terms = stack.layer(layer, terms, places[codebook - 1], attend_in(layer, mask))
        if codebook == 1:
            terms = (graph.op("Gather", graph.op("Add", *terms), graph.integers(-1), axis=1),)
        of_row, _ = norm_linear(graph, terms, predictor.heads[codebook - 1], config.rms_norm_eps)
        logits.append(graph.op("Squeeze", of_row, graph.integers(1)))
        codes.append(draw(logits[-1], uniform[codebook]))
        offset = predictor.offsets[codebook]
        table = predictor.inputs[offset : offset + config.vocab_size]
        terms, mask = (graph.op("Gather", graph.weight(table), codes[-1]),), ""
    graph.output("codes", graph.op("Concat", *codes, axis=1), torch.int64)
    if with_logits:
        logits[0], _ = graph.split(logits[0], [config.vocab_size, 1])
        graph.output("logits", _stack(graph, logits))
    return graph


class Stack:
    """Layers of a Qwen3 stack (transformer.py)."""

    def __init__(self, graph: OnnxGraph, transformer: Transformer, cache: PagedCache | FrameCache) -> None:
        config = transformer.config
        self._graph, self._config, self._layers = graph, config, transformer.layers
        self._heads = (config.num_attention_heads, config.num_key_value_heads)
        self._head_norms = [self._of_each_head(layer) for layer in self._layers]
        self._angles = [graph.weight(table.squeeze(1)) for table in (cache.cos, cache.sin)]
        heads = dict(zip(("q_num_heads", "kv_num_heads"), self._heads, strict=True))
        self._attention = {**heads, "scale": config.head_dim**-0.5}

    def layer(self, number: int, terms: Terms, positions: Value, attend: Attend) -> Terms:
        """[B, N, H] → [B, N, H]; `positions` int64 [B, N]."""
        graph, weights, config = self._graph, self._layers[number], self._config
        query_size, size, eps = config.query_size, config.key_value_size, config.rms_norm_eps
        qkv, x = norm_linear(graph, terms, weights.qkv, eps)
        query_key, value = graph.split(qkv, [query_size + size, size])
        query, key = graph.split(self._rotate(number, query_key, positions), [query_size, size])
        attended = graph.product(attend(query, key, value), weights.output)
        gate_up, x = norm_linear(graph, (x, attended), weights.gate_up, eps)
        gate, up = graph.ops("Split", 2, gate_up, axis=-1, num_outputs=2)
        # ONNX Runtime would run Swish as four nodes.
        swish = graph.op("QuickGelu", gate, domain=OWN, alpha=1.0)
        return x, graph.product(graph.op("Mul", swish, up), weights.down)

    def attention(self, query: Value, keys: Value, values: Value, mask: Value) -> Value:
        """`mask` float32 [B, 1, N, T] is added to the scores."""
        return self._graph.op("Attention", query, keys, values, mask, **self._attention)

    def attention_over(self, past: Sequence[Value], query: Value, key: Value, value: Value, mask: Value) -> list[Value]:
        """Attention over the past and the new rows; returns its result, and the past with these rows."""
        return self._graph.ops("Attention", 3, query, key, value, mask, *past, **self._attention)

    def _rotate(self, number: int, x: Value, positions: Value) -> Value:
        """Heads of query and key [B, N, heads·D], normed and rotated."""
        graph, heads = self._graph, sum(self._heads)
        each = graph.op("Reshape", x, graph.integers(0, 0, heads, self._config.head_dim))
        normed = rms_norm(graph, each, self._head_norms[number], self._config.rms_norm_eps)
        rows = graph.op("Reshape", normed, graph.integers(0, 0, -1))
        return graph.op("RotaryEmbedding", rows, *self._angles, positions, num_heads=heads)

    def _of_each_head(self, weights: LayerWeights) -> Tensor:
        """The norm's weight of each head of query and key [heads, D]."""
        norms = zip((weights.q_norm, weights.k_norm), self._heads, strict=True)
        return torch.cat([norm.expand(heads, -1) for norm, heads in norms])


class Draw:
    """Draws of one kind, as sampling.draw.

    Inputs, with the kind before their names: `candidates` int64 [1], the largest top_k of the batch; of each row, [B,
    1], `last` int64, top_k - 1, `temperature`, and `top_p`, more than 1 for none.
    """

    def __init__(self, graph: OnnxGraph, kind: str) -> None:
        self._graph = graph
        self._candidates = graph.input(f"{kind}_candidates", [1], torch.int64)
        self._last = graph.input(f"{kind}_last", ["B", 1], torch.int64)
        self._temperature, self._top_p = (graph.input(f"{kind}_{name}", ["B", 1]) for name in ("temperature", "top_p"))

    def __call__(self, logits: Value, uniform: Value) -> Value:
        """One code for each row, int64 [B, 1], from logits [B, codes] and uniform [B, 1]."""
        op, axis = self._graph.op, self._graph.integers(1)
        values, ids = self._graph.ops("TopK", 2, logits, self._candidates, axis=1)
        below = op("Sub", values, op("Gather", values, self._graph.integers(0), axis=1))
        weight = op("Exp", op("Div", below, self._temperature))
        # Candidates are in descending order, so top_k and top_p each keep the first ones, and a sum over these is the
        # cumulative one at the last of them.
        cumulative = op("CumSum", weight, self._graph.integer(1))
        total = op("GatherElements", cumulative, self._last, axis=1)
        is_inside = op("Less", op("Sub", cumulative, weight), op("Mul", total, self._top_p))
        inside = op("ReduceMax", op("Where", is_inside, cumulative, self._graph.floats(0.0)), axis)
        target = op("Mul", op("Min", inside, total), uniform)
        is_before = self._graph.cast(op("LessOrEqual", cumulative, target), torch.int64)
        rank = op("Min", op("ReduceSum", is_before, axis), self._last)
        return op("GatherElements", ids, rank, axis=1)


def _first_logits(graph: OnnxGraph, talker: Talker, hidden: Value, codes: int) -> Value:
    """Logits of codebook 0 and the end, [B, codes + 1], as sampling.mask_first.

    Inputs: `seen` bool [B, codes], `penalty` [B, 1], and `end_bias` [B, 1], -inf in the first frames.
    """
    seen, penalty = graph.input("seen", ["B", codes], torch.bool), graph.input("penalty", ["B", 1])
    head = NormLinear(talker.head.norm, _drawable(talker.head.weight, talker, codes))
    logits, _ = norm_linear(graph, (hidden,), head, talker.config.rms_norm_eps)
    logits, end = graph.split(logits, [codes, 1])
    is_positive = graph.op("Greater", logits, graph.floats(0.0))
    penalised = graph.op("Where", is_positive, graph.op("Div", logits, penalty), graph.op("Mul", logits, penalty))
    end = graph.op("Add", end, graph.input("end_bias", ["B", 1]))
    return graph.op("Concat", graph.op("Where", seen, penalised, logits), end, axis=1)


def _stack(graph: OnnxGraph, values: Sequence[Value]) -> Value:
    return graph.op("Concat", *(graph.op("Unsqueeze", value, graph.integers(0)) for value in values), axis=0)


def _slice(graph: OnnxGraph, value: Value, start: int, count: int) -> Value:
    """`count` columns of a value [B, N, columns]."""
    return graph.op("Slice", value, graph.integers(start), graph.integers(start + count), graph.integers(2))


def _drawable(table: Tensor, talker: Talker, codes: int) -> Tensor:
    """The rows of codebook 0 that can be drawn: the codes, then the end."""
    end = talker.config.codec_eos_token_id
    return torch.cat([table[:codes], table[end : end + 1]])


def _project(graph: OnnxGraph, predictor: CodePredictor, hidden: Value) -> Value:
    """CodePredictor's projection: norm, then talker width → predictor width."""
    if predictor.projection is None:
        return rms_norm(graph, hidden, predictor.hidden_norm, predictor.hidden_eps)
    projected, _ = norm_linear(graph, (hidden,), predictor.projection, predictor.hidden_eps)
    return projected if predictor.bias is None else graph.op("Add", projected, graph.weight(predictor.bias))


def norm_linear(graph: OnnxGraph, terms: Terms, product: NormLinear, eps: float) -> tuple[Value, Value]:
    """A product of the norm of what the terms add up to, and that sum."""
    assert product.norm is not None
    if len(terms) == 1:
        return graph.product(rms_norm(graph, terms[0], product.norm, eps), product.weight), terms[0]
    norm = graph.weight(product.norm)
    normed, _, _, x = graph.ops("SkipSimplifiedLayerNormalization", 4, *terms, norm, domain=OWN, epsilon=eps)
    return graph.product(normed, product.weight), x
