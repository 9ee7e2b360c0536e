"""Talker and code predictor as they are trained; `packing.py` gives their tensors the released shapes."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.demo_voice.codec.layers import GatedMlp, Json, RmsNorm, rotate, rotation
from scripts.demo_voice.sizes import ACTIVE, CODES

DROPOUT = 0.05


class Talker(nn.Module):
    """Predicts the 256 codes of codebook 0 or the end of speech, class 256, and the other active codebooks."""

    def __init__(self, config: Json) -> None:
        super().__init__()
        self.config = config
        hidden, text = config["hidden_size"], config["text_hidden_size"]
        self.model = TalkerStack(config)
        self.text_projection = TextProjection(text, hidden)
        self.codec_head = nn.Linear(hidden, CODES + 1, bias=False)
        self.code_predictor = CodePredictor(config["code_predictor_config"], hidden)
        self._initialise()

    def tables(self) -> Tensor:
        """Embeddings of the active codebooks [active, codes, hidden]."""
        others = self.code_predictor.model.codec_embedding.parameters()
        return torch.stack([self.model.codec_embedding.weight[:CODES], *others])

    def embed(self, text: Tensor, control: Tensor, codes: Tensor, is_frame: Tensor) -> Tensor:
        """Rows [batch, length] of text ids, control ids (-1: none) and frames of codes [batch, length, active]."""
        side = self.text_projection(self.model.text_embedding(text))
        own = self.model.codec_embedding(control.clamp(min=0)) * (control >= 0)[..., None]
        offsets = CODES * torch.arange(ACTIVE, device=codes.device)
        frames = functional.embedding(codes + offsets, self.tables().flatten(0, 1)).sum(-2)
        rows: Tensor = side + own + frames * is_frame[..., None]
        return rows

    def forward(self, rows: Tensor, visible: Tensor) -> Tensor:
        """Rows [batch, length, hidden] and who sees whom, bool [batch, 1, length, length] -> states."""
        states: Tensor = self.model(rows, visible)
        return states

    def predict(self, states: Tensor, codes: Tensor) -> Tensor:
        """States [M, hidden] and their frames [M, active] -> logits [M, active - 1, codes] of the codes 1 and on."""
        tables = self.tables()
        inputs = [functional.embedding(codes[:, i], tables[i]) for i in range(ACTIVE - 1)]
        logits: Tensor = self.code_predictor(torch.stack([states, *(x.to(states.dtype) for x in inputs)], 1))
        return logits

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if "embedding" in name:
                nn.init.normal_(parameter, 0.0, 0.5 if "text" in name else 0.1)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, 0.7 * parameter.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.data.mul_((2 * self.config["num_hidden_layers"]) ** -0.5)


class TextProjection(nn.Module):
    def __init__(self, text: int, hidden: int) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(text, text), nn.Linear(text, hidden)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear_fc2(functional.silu(self.linear_fc1(x)))
        return y


class CodePredictor(nn.Module):
    def __init__(self, config: Json, talker_hidden: int) -> None:
        super().__init__()
        hidden, count = config["hidden_size"], ACTIVE - 1
        assert hidden == talker_hidden, "there is no projection between the two"
        self.model = PredictorStack(config)
        self.lm_head = nn.ModuleList(nn.Linear(hidden, CODES, bias=False) for _ in range(count))

    def forward(self, rows: Tensor) -> Tensor:
        """[M, active, hidden] -> logits [M, active - 1, codes]; row 0 is the talker's state."""
        states = self.model(rows, None)[:, 1:]
        heads = torch.stack(list(self.lm_head.parameters())).to(states.dtype)
        return torch.einsum("mkh,kvh->mkv", states, heads)


class Stack(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RmsNorm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        """`visible` None: causal."""
        turns = rotation(x.shape[1], self.config["head_dim"], self.config["rope_theta"], x.device)
        for layer in self.layers:
            x = layer(x, turns, visible)
        y: Tensor = self.norm(x)
        return y


class TalkerStack(Stack):
    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.codec_embedding = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.text_embedding = nn.Embedding(config["text_vocab_size"], config["text_hidden_size"])


class PredictorStack(Stack):
    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.codec_embedding = nn.ModuleList(nn.Embedding(CODES, config["hidden_size"]) for _ in range(ACTIVE - 1))


class Layer(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(hidden, eps) for _ in range(2))
        self.self_attn, self.mlp = Attention(config), GatedMlp(hidden, config["intermediate_size"])
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], visible: Tensor | None) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), turns, visible))
        y: Tensor = self.dropout(self.mlp(self.post_attention_layernorm(x)))
        return x + y


class Attention(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        hidden, self.head_dim = config["hidden_size"], config["head_dim"]
        query, key = (self.head_dim * config[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
        self.groups = query // key
        self.q_proj, self.o_proj = nn.Linear(hidden, query, bias=False), nn.Linear(query, hidden, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(hidden, key, bias=False) for _ in range(2))
        self.q_norm, self.k_norm = (RmsNorm(self.head_dim, config["rms_norm_eps"]) for _ in range(2))

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], visible: Tensor | None) -> Tensor:
        query = rotate(self.q_norm(self._heads(self.q_proj(x))).transpose(1, 2), *turns)
        key = rotate(self.k_norm(self._heads(self.k_proj(x))).transpose(1, 2), *turns)
        value = self._heads(self.v_proj(x)).transpose(1, 2)
        key, value = (part.repeat_interleave(self.groups, 1) for part in (key.to(value.dtype), value))
        y = functional.scaled_dot_product_attention(
            query.to(value.dtype), key, value, attn_mask=visible, is_causal=visible is None
        )
        z: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return z

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(2, (-1, self.head_dim))
        return heads
