"""The Qwen3 decoder stack that the talker and the code predictor share (docs/model.md, Decoder stack)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.configs import TransformerConfig
from qwen3_tts_engine.talker.ops.interface import Attention, Hidden, Ops
from qwen3_tts_engine.talker.weights import LayerWeights


class Transformer:
    """The layers and the final norm's weight; the cache belongs to the caller."""

    def __init__(self, config: TransformerConfig, tensors: Mapping[str, Tensor], prefix: str, ops: Ops) -> None:
        self.config = config
        self.layers = [_layer(tensors, f"{prefix}.layers.{i}", ops) for i in range(config.num_hidden_layers)]
        self.final_norm = tensors[f"{prefix}.norm.weight"]
        self._ops = ops

    def forward(self, rows: Tensor, attention: Attention, *, together: bool = False) -> Hidden:
        """[rows, H] → [rows, H], before the final norm; `rows` are used as the residual stream and overwritten.

        `together` as in Hidden.
        """
        hidden, ops, eps = Hidden(rows, together=together), self._ops, self.config.rms_norm_eps
        for index, weights in enumerate(self.layers):
            ops.add_linear(hidden, attention(index, hidden, weights), weights.output)
            gated = ops.norm_gated(hidden, weights.gate_up, eps)
            ops.add_linear(hidden, gated, weights.down)
        return hidden


def _layer(tensors: Mapping[str, Tensor], prefix: str, ops: Ops) -> LayerWeights:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = torch.cat([tensors[f"{attention}.{name}_proj.weight"] for name in "qkv"])
    gate_up = torch.cat([tensors[f"{mlp}.{name}_proj.weight"] for name in ("gate", "up")])
    return LayerWeights(
        qkv=ops.fold(tensors[f"{prefix}.input_layernorm.weight"], qkv),
        q_norm=tensors[f"{attention}.q_norm.weight"],
        k_norm=tensors[f"{attention}.k_norm.weight"],
        output=tensors[f"{attention}.o_proj.weight"],
        gate_up=ops.fold(tensors[f"{prefix}.post_attention_layernorm.weight"], gate_up),
        down=tensors[f"{mlp}.down_proj.weight"],
    )
