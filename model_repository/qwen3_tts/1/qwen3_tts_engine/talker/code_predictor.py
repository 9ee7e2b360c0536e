"""The code predictor: codebooks 1 to 15 of a frame from the talker's hidden state and codebook 0.

See docs/model.md, Code predictor.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from qwen3_tts_engine.talker.kv_cache import FrameCache
from qwen3_tts_engine.talker.ops.interface import Hidden, Ops, Rows
from qwen3_tts_engine.talker.talker import Talker
from qwen3_tts_engine.talker.transformer import Transformer


class CodePredictor:
    def __init__(self, talker: Talker, tensors: Mapping[str, Tensor], ops: Ops) -> None:
        self.config = talker.config.code_predictor_config
        self.num_codebooks = talker.config.num_code_groups
        self.transformer = Transformer(self.config, tensors, "talker.code_predictor.model", ops)
        heads = [tensors[f"talker.code_predictor.lm_head.{i}.weight"] for i in range(self.num_codebooks - 1)]
        self.heads = [ops.fold(self.transformer.final_norm, head) for head in heads]
        name = "talker.code_predictor.small_to_mtp_projection"
        projection, self.bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
        # The stack's inputs are the talker's embeddings after the projection, precomputed as one table instead of 15
        # products. The small model has equal widths and no projection.
        table = talker.code_table
        self.inputs = table if projection is None else ops.linear(table, projection, self.bias)
        self.offsets = talker.code_offsets.tolist()
        self.hidden_norm, self.hidden_eps = talker.transformer.final_norm, talker.config.rms_norm_eps
        self.projection = None if projection is None else ops.fold(self.hidden_norm, projection)
        self._ops = ops

    def predict(self, hidden: Hidden, logits: Tensor, rows: Rows, cache: FrameCache) -> None:
        """Draw all codes of a frame into `rows`.

        hidden [rows, talker H] is the talker's last state before its norm, logits float32 [rows, vocabulary] its logits
        of codebook 0.
        """
        x = hidden.rows.new_empty(len(logits), 2, self.config.hidden_size)
        self._project(hidden, x[:, 0])
        rows.draw_first(logits, self.inputs, x[:, 1])
        x = self._draw(1, x.flatten(0, 1), 0, 2, rows, cache)
        for codebook in range(2, self.num_codebooks):
            x = self._draw(codebook, x, codebook, 1, rows, cache)

    def _draw(self, codebook: int, x: Tensor, start: int, count: int, rows: Rows, cache: FrameCache) -> Tensor:
        """Forward `count` positions and draw a codebook from the last; returns its embedding, the next input."""
        last = self.transformer.forward(x, self._ops.frame_attention(cache, start, count)).every(count)
        logits = self._ops.norm_logits(last, self.heads[codebook - 1], self.config.rms_norm_eps)
        following = torch.empty_like(last.rows)
        rows.draw(codebook, logits, self.inputs[self.offsets[codebook] :], following)
        return following

    def _project(self, hidden: Hidden, out: Tensor) -> None:
        """Norm, then talker width → predictor width."""
        if self.projection is None:
            self._ops.rms_norm(hidden.rows, self.hidden_norm, self.hidden_eps, out)
        else:
            self._ops.norm_linear(hidden, self.projection, self.hidden_eps, bias=self.bias, out=out)
