"""Layers of random weights, timed in a CUDA graph with chosen kernels for their products."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.configs import TalkerConfig, TransformerConfig
from qwen3_tts_engine.talker.kernels.kernel_path import HOPPER
from qwen3_tts_engine.talker.kernels.skinny_linear import Block, SkinnyLinear, halves_of
from qwen3_tts_engine.talker.kernels.tile_linear import with_stages
from qwen3_tts_engine.talker.kv_cache import FrameCache
from qwen3_tts_engine.talker.ops.kernel_ops import KernelOps
from qwen3_tts_engine.talker.ops.products import Form, Products
from qwen3_tts_engine.talker.transformer import Transformer
from scripts.lab.cuda_timing import graph_us
from scripts.lab.products.search import Choice
from scripts.synthetic.configs import model_config

# Positions of a frame, and of the talker's layers, whose attention here is that of the predictor too.
POSITIONS = 16
TOKENS = ("im_start", "im_end", "assistant", "tts_pad", "tts_bos", "tts_eos")


@dataclass(frozen=True)
class Product:
    outputs: int
    inputs: int
    flag: str | None = None

    @property
    def flags(self) -> dict[str, int]:
        return {"NORM": 1} | ({self.flag: 1} if self.flag else {})

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weight."""
        return self.outputs * (2 if self.flag == "GATED" else 1), self.inputs


@dataclass(frozen=True)
class Shape:
    """`passes` through the layers and the head make one tick."""

    config: TransformerConfig
    vocabulary: int
    passes: int

    @cached_property
    def products(self) -> dict[str, Product]:
        config = self.config
        hidden, inner, queries = config.hidden_size, config.intermediate_size, config.query_size
        return {
            "qkv": Product(queries + 2 * config.key_value_size, hidden),
            "out": Product(hidden, queries, "RESIDUAL"),
            "gate": Product(inner, hidden, "GATED"),
            "down": Product(hidden, inner, "RESIDUAL"),
            "head": Product(self.vocabulary, hidden, "FLOAT_OUT"),
        }


def shapes() -> dict[str, Shape]:
    """Shapes of a released 1.7B checkpoint; both stacks of a 0.6B one have the predictor's products."""
    talker = TalkerConfig.model_validate(
        model_config("1.7b", "custom_voice", {f"{name}_token_id": 0 for name in TOKENS})["talker_config"]
    )
    predictor = talker.code_predictor_config
    return {
        "predictor": Shape(predictor, predictor.vocab_size, talker.num_code_groups - 1),
        "talker": Shape(talker, talker.vocab_size, 1),
    }


class ChosenProducts(Products):
    """`tiles` by the weight's shape, None for cuBLAS; others as served."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, HOPPER, batch_invariant=False)
        self.tiles: dict[tuple[int, int], Choice | None] = {}

    def form(self, rows: int, weight: Tensor, **flags: int) -> Form | None:
        height, inputs = weight.shape
        if (height, inputs) not in self.tiles:
            return super().form(rows, weight, **flags)
        tile, outputs = self.tiles[height, inputs], height // (1 + flags.get("GATED", 0))
        if isinstance(tile, Block):
            return SkinnyLinear(outputs, inputs, halves_of(rows), *tile, **flags)
        return tile and with_stages(outputs, inputs, tile, **flags)


class ChosenOps(KernelOps):
    def __init__(self, device: torch.device) -> None:
        super().__init__(device, HOPPER)
        self.products = self._products = ChosenProducts(device)


class Stack:
    def __init__(self, shape: Shape, rows: int, device: torch.device) -> None:
        self._shape, self._ops = shape, ChosenOps(device)
        config = shape.config
        torch.manual_seed(0)
        with device:
            tensors = dict(layer for index in range(config.num_hidden_layers) for layer in layer_tensors(config, index))
            tensors["model.norm.weight"] = torch.ones(config.hidden_size, dtype=torch.bfloat16)
        self._transformer = Transformer(config, tensors, "model", self._ops)
        head = 0.02 * torch.randn(shape.vocabulary, config.hidden_size, device=device)
        self._head = self._ops.fold(torch.ones(config.hidden_size, device=device), head.bfloat16())
        self._cache = FrameCache(config, rows, POSITIONS, torch.bfloat16, device)
        self._start = torch.randn(rows, config.hidden_size, device=device).bfloat16()

    def layer_us(self, tiles: Mapping[str, Choice | None], repeats: int) -> float:
        """Microseconds of all passes, for each layer, with these tiles for the products of those names."""
        x = self._start.clone()
        self._choose(tiles)
        self._run(x)
        count = self._shape.passes * self._shape.config.num_hidden_layers
        return graph_us(lambda: self._run(x), repeats) / count

    def result(self, tiles: Mapping[str, Choice | None]) -> Tensor:
        """[rows, H] after all passes."""
        self._cache.data.zero_()
        x = self._start.clone()
        self._choose(tiles)
        self._run(x)
        return x

    def _choose(self, tiles: Mapping[str, Choice | None]) -> None:
        self._ops.products.tiles = {self._shape.products[name].shape: tile for name, tile in tiles.items()}

    def _run(self, x: Tensor) -> None:
        for position in range(POSITIONS - self._shape.passes, POSITIONS):
            hidden = self._transformer.forward(x, self._ops.frame_attention(self._cache, position, 1))
            self._ops.norm_logits(hidden, self._head, self._shape.config.rms_norm_eps)


def layer_tensors(config: TransformerConfig, layer: int) -> list[tuple[str, Tensor]]:
    hidden, inner, queries, keys = (
        config.hidden_size, config.intermediate_size, config.query_size, config.key_value_size,
    )  # fmt: skip
    products = {
        "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    place = f"model.layers.{layer}"
    return [
        *((f"{place}.{name}.weight", (0.02 * torch.randn(shape)).bfloat16()) for name, shape in products.items()),
        *((f"{place}.{name}.weight", torch.ones(size, dtype=torch.bfloat16)) for name, size in norms.items()),
    ]
