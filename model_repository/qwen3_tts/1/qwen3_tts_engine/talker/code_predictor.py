"""The code predictor: codebooks 1 to 15 of a frame from the talker's hidden state and codebook 0.

See docs/model.md, Code predictor.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from qwen3_tts_engine.talker.kv_cache import FrameCache
from qwen3_tts_engine.talker.ops.interface import Ops, Rows
from qwen3_tts_engine.talker.talker import Talker
from qwen3_tts_engine.talker.transformer import Transformer


class CodePredictor:
    def __init__(self, talker: Talker, tensors: Mapping[str, Tensor], ops: Ops) -> None:
        self.config = talker.config.code_predictor_config
        self.num_codebooks = talker.config.num_code_groups
        self.transformer = Transformer(self.config, tensors, "talker.code_predictor.model", ops)
        prefix = "talker.code_predictor.lm_head"
        self.heads = [tensors[f"{prefix}.{i}.weight"] for i in range(self.num_codebooks - 1)]
        projection = "talker.code_predictor.small_to_mtp_projection"
        self._projection, self._bias = tensors.get(f"{projection}.weight"), tensors.get(f"{projection}.bias")
        # The stack's inputs are the talker's embeddings after the projection, precomputed as one table instead of 15
        # products. The small model has equal widths and no projection.
        table = talker.code_table
        self._inputs = table if self._projection is None else F.linear(table, self._projection, self._bias)
        self._offsets = talker.code_offsets.tolist()
        self._hidden_norm, self._hidden_eps = talker.transformer.final_norm, talker.config.rms_norm_eps
        self._ops = ops

    def predict(self, hidden: Tensor, logits: Tensor, rows: Rows, cache: FrameCache) -> None:
        """Draw all codes of a frame into `rows`.

        hidden [rows, talker H] is the talker's last state before its norm, logits float32 [rows, vocabulary] its logits
        of codebook 0.
        """
        x = hidden.new_empty(len(hidden), 2, self.config.hidden_size)
        self._project(hidden, x[:, 0])
        rows.draw_first(logits, self._inputs, x[:, 1])
        x = self._draw(1, x.flatten(0, 1), 0, 2, rows, cache)
        for codebook in range(2, self.num_codebooks):
            x = self._draw(codebook, x, codebook, 1, rows, cache)

    def _draw(self, codebook: int, x: Tensor, start: int, count: int, rows: Rows, cache: FrameCache) -> Tensor:
        """Forward `count` positions and draw a codebook from the last; returns its embedding, the next input."""
        x = self.transformer.forward(x, self._ops.frame_attention(cache, start, count))[count - 1 :: count]
        norm, eps = self.transformer.final_norm, self.config.rms_norm_eps
        logits = self._ops.norm_logits(x, norm, self.heads[codebook - 1], eps)
        following = torch.empty_like(x)
        rows.draw(codebook, logits, self._inputs[self._offsets[codebook] :], following)
        return following

    def _project(self, hidden: Tensor, out: Tensor) -> None:
        """Norm, then talker width → predictor width."""
        if self._projection is None:
            self._ops.rms_norm(hidden, self._hidden_norm, self._hidden_eps, out)
        else:
            norm, eps = self._hidden_norm, self._hidden_eps
            self._ops.norm_linear(hidden, norm, self._projection, eps, bias=self._bias, out=out)
