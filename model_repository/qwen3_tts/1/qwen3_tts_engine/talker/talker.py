"""The talker: embeddings, decoder stack and the head of codebook 0 (docs/model.md, Embeddings)."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from qwen3_tts_engine.checkpoint.configs import TalkerConfig
from qwen3_tts_engine.talker.ops.interface import Attention, Hidden, Ops
from qwen3_tts_engine.talker.transformer import Transformer

PROJECTION_ROWS = 8192


class Talker:
    def __init__(self, config: TalkerConfig, tensors: Mapping[str, Tensor], ops: Ops) -> None:
        self.config = config
        # Before the layers, which take the memory that the original tables leave.
        self.text_table = with_zero_row(project_text(tensors, ops))
        self.code_table = with_zero_row(merged_code_table(config, tensors))
        self.code_offsets = code_offsets(config).to(self.code_table.device)
        self.transformer = Transformer(config, tensors, "talker.model", ops)
        self.head = ops.fold(self.transformer.final_norm, tensors["talker.codec_head.weight"])
        self._ops = ops

    def embed(self, text_ids: Tensor, code_ids: Tensor) -> Tensor:
        """int64 text ids [rows] and code ids [rows, codebooks], negative for none → [rows, H]."""
        rows = torch.where(code_ids < 0, -1, code_ids + self.code_offsets)
        return self._ops.embed(self.code_table, rows) + self.text_table[text_ids]

    def forward(self, rows: Tensor, attention: Attention, *, together: bool = False) -> Hidden:
        """[rows, H] → the last hidden state [rows, H], before the final norm; `together` as in Hidden."""
        return self.transformer.forward(rows, attention, together=together)

    def logits(self, hidden: Hidden) -> Tensor:
        """Last hidden state [rows, H] → float32 logits of codebook 0 and the control ids [rows, vocabulary]."""
        return self._ops.norm_logits(hidden, self.head, self.config.rms_norm_eps)


def project_text(tensors: Mapping[str, Tensor], ops: Ops) -> Tensor:
    """Projected text embeddings of all ids, [text vocabulary, H]; precomputed, since each depends on its id alone."""
    table, projection = tensors["talker.model.text_embedding.weight"], "talker.text_projection.linear_fc"
    w1, b1, w2, b2 = (tensors[f"{projection}{i}.{kind}"] for i in (1, 2) for kind in ("weight", "bias"))
    rows = table.split(PROJECTION_ROWS)
    return torch.cat([ops.linear(F.silu(ops.linear(block, w1, b1)), w2, b2) for block in rows])


def merged_code_table(config: TalkerConfig, tensors: Mapping[str, Tensor]) -> Tensor:
    """Embeddings of codebook 0 (including control ids), then of codebooks 1 to 15: [3072 + 15·2048, H]."""
    predictor = "talker.code_predictor.model.codec_embedding"
    tables = [tensors["talker.model.codec_embedding.weight"]]
    tables += [tensors[f"{predictor}.{i}.weight"] for i in range(config.num_code_groups - 1)]
    return torch.cat(tables)


def code_offsets(config: TalkerConfig) -> Tensor:
    """Offset of each codebook in the merged table, int64 [codebooks]."""
    sizes = [config.vocab_size] + [config.code_predictor_config.vocab_size] * (config.num_code_groups - 2)
    return torch.tensor([0, *sizes]).cumsum(0)


def with_zero_row(table: Tensor) -> Tensor:
    """The table with a row of zeros appended, which index -1 selects."""
    return torch.cat([table, table.new_zeros(1, table.shape[1])])
