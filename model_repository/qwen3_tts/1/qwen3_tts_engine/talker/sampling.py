"""Sampling of codes (docs/model.md, Sampling); each row is independent of the batch."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MIN_NEW_TOKENS = 2
# Size of a vector register: a CPU sums fewer candidates in another order, so that rows would depend on each other.
MIN_CANDIDATES = 16


@dataclass(frozen=True)
class DrawParameters:
    """Parameters of each row: float32 temperature and top_p, int64 top_k, each [rows]; a top_k of 0 keeps all."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor

    @cached_property
    def all_greedy(self) -> bool:
        return bool((self.temperature == 0).all())

    @cached_property
    def any_nucleus(self) -> bool:
        return bool((self.top_p < 1).any())

    @cached_property
    def num_candidates(self) -> int:
        """Largest top_k of the batch, at least MIN_CANDIDATES; 0 when a row keeps all."""
        return max(MIN_CANDIDATES, int(self.top_k.max())) if bool((self.top_k > 0).all()) else 0


def uniforms(seed: Tensor, frame: Tensor, num_codebooks: int) -> Tensor:
    """Hashes of (seed, frame, codebook) in [0, 1), float32 [rows, codebooks]; seed and frame int64 [rows]."""
    counter = frame[:, None] * num_codebooks + torch.arange(1, num_codebooks + 1, device=frame.device)
    x = seed[:, None] + counter * _signed(GOLDEN_GAMMA)
    x = (x ^ _shift(x, 30)) * _signed(MIX_1)
    x = (x ^ _shift(x, 27)) * _signed(MIX_2)
    x = x ^ _shift(x, 31)
    return _shift(x, 40).float() * 2.0**-24


def mask_first(logits: Tensor, seen: Tensor, penalty: Tensor, frame: Tensor, eos: int) -> Tensor:
    """Logits of codebook 0 with repetition penalty; early EOS and control ids are masked.

    logits float32 [rows, vocabulary]; seen bool [rows, codes]: codes drawn before; penalty float32 [rows]; frame
    int64 [rows]. Ids above the codes are suppressed except `eos`.
    """
    num_codes = seen.shape[1]
    codes = logits[:, :num_codes]
    scale = penalty[:, None]
    penalised = torch.where(codes > 0, codes / scale, codes * scale)
    masked = torch.full_like(logits, -torch.inf)
    masked[:, :num_codes] = torch.where(seen, penalised, codes)
    masked[:, eos] = logits[:, eos].masked_fill(frame < MIN_NEW_TOKENS, -torch.inf)
    return masked


def draw(logits: Tensor, parameters: DrawParameters, uniform: Tensor) -> Tensor:
    """One code for each row, int64 [rows], from logits float32 [rows, vocabulary]; uniform is float32 [rows].

    Temperature, top_k, top_p in the reference's order, then inverse transform sampling over the candidates by
    descending probability. Temperature 0 is greedy.
    """
    argmax = logits.argmax(-1)
    if parameters.all_greedy:
        return argmax
    values, ids = logits.topk(min(parameters.num_candidates or logits.shape[1], logits.shape[1]), dim=-1)
    greedy, top_k = parameters.temperature == 0, parameters.top_k[:, None]
    excluded = (torch.arange(values.shape[1], device=values.device) >= top_k) & (top_k > 0)
    scaled = values / torch.where(greedy, 1.0, parameters.temperature)[:, None]
    probability = scaled.masked_fill_(excluded, -torch.inf).softmax(-1)
    cumulative = probability.cumsum(-1)
    if parameters.any_nucleus:
        top_p = parameters.top_p[:, None]
        outside = (cumulative - probability >= top_p) & (top_p < 1)
        cumulative = probability.masked_fill_(outside, 0.0).cumsum(-1)
    rank = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(-1).clamp_(max=values.shape[1] - 1)
    return torch.where(greedy, argmax, ids.gather(1, rank[:, None]).squeeze(1))


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64; PyTorch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
