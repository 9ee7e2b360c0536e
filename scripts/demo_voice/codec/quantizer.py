"""Residual vector quantizers: codebook 0 for phones, the others for the rest of the sound.

Codebooks learn by moving averages of the vectors that chose each entry; gradients pass straight through.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.demo_voice.codec.layers import Json

DECAY = 0.98
# An entry that is used less than this share of an even use begins again at a vector of the batch.
UNUSED = 0.12
USAGE_FLOOR = 1e-5


class Quantized(NamedTuple):
    """N vectors as the decoder's input and its part from codebook 0, both [N, dim], commitment loss, codes [N, K]."""

    vectors: Tensor
    phones: Tensor
    commitment: Tensor
    codes: Tensor


class Quantizer(nn.Module):
    def __init__(self, config: Json, active: int) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(1, config["codebook_size"], config["codebook_dim"])
        self.rvq_rest = ResidualQuantizer(active - 1, config["codebook_size"], config["codebook_dim"])

    def forward(self, z: Tensor, counts: Tensor, learn: bool) -> Quantized:
        """z [N, dim]; counts [N]: how many codebooks after the first one sound."""
        with torch.autocast(z.device.type, enabled=False):
            z = z.float()
            first, commitment, code = self.rvq_first(z, torch.ones_like(counts), learn)
            rest, rest_commitment, codes = self.rvq_rest(z, counts, learn)
            # The phones shape codebook 0 alone; sound passes no gradient to its encoder.
            heard = self.rvq_first.out(first.detach())
            vectors = heard + self.rvq_rest.out(rest)
            return Quantized(vectors, first, commitment + rest_commitment, torch.cat([code, codes], 1))

    def unquantized(self, z: Tensor) -> Quantized:
        with torch.autocast(z.device.type, enabled=False):
            first, rest = self.rvq_first.project(z.float()), self.rvq_rest.project(z.float())
            vectors = self.rvq_first.out(first.detach()) + self.rvq_rest.out(rest)
            none = torch.zeros(len(z), 0, dtype=torch.long, device=z.device)
            return Quantized(vectors, first, z.new_zeros((), dtype=torch.float32), none)

    def begin(self, z: Tensor) -> None:
        """Entries begin at vectors of `z`."""
        for quantizer in (self.rvq_first, self.rvq_rest):
            quantizer.begin(z.float())

    def encode(self, z: Tensor) -> Tensor:
        """[N, dim] -> codes [N, K]"""
        return torch.cat([self.rvq_first.encode(z), self.rvq_rest.encode(z)], 1)

    def decode(self, codes: Tensor, count: int | None = None) -> Tensor:
        """[N, K] -> [N, dim]; only the first `count` codebooks sound."""
        first = self.rvq_first.out(self.rvq_first.entries_of(codes[:, :1]))
        rest = codes[:, 1:count]
        return first + self.rvq_rest.out(self.rvq_rest.entries_of(rest)) if rest.shape[1] else first


class ResidualQuantizer(nn.Module):
    """Each codebook encodes what those before it left; vectors are [N, dim]."""

    def __init__(self, count: int, size: int, outer: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(outer, outer // 2, 1, bias=False)
        self.output_proj = nn.Conv1d(outer // 2, outer, 1, bias=False)
        self.vq = nn.Module()
        self.vq.layers = nn.ModuleList(CodebookLayer(size, outer // 2) for _ in range(count))

    @property
    def codebooks(self) -> "list[Codebook]":
        return [layer._codebook for layer in self.vq.layers]  # type: ignore[union-attr]

    def project(self, z: Tensor) -> Tensor:
        return functional.linear(z, self.input_proj.weight[:, :, 0])

    def out(self, inner: Tensor) -> Tensor:
        return functional.linear(inner, self.output_proj.weight[:, :, 0])

    def forward(self, z: Tensor, counts: Tensor, learn: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The inner vectors that sound, straight through; the commitment loss; codes."""
        projected = self.project(z)
        rest, sounding, commitment, codes = projected, torch.zeros_like(projected), projected.new_zeros(()), []
        for i, codebook in enumerate(self.codebooks):
            code, entries = codebook.nearest(rest.detach())
            if learn:
                codebook.learn(rest.detach(), code)
            used = (counts > i).float()[:, None]
            commitment = commitment + ((rest - entries).square().mean(1, keepdim=True) * used).mean()
            sounding, rest = sounding + entries * used, rest - entries
            codes.append(code)
        through = projected * (counts > 0).float()[:, None]
        return through + (sounding - through).detach(), commitment, torch.stack(codes, 1)

    @torch.no_grad()
    def begin(self, z: Tensor) -> None:
        rest = self.project(z)
        for codebook in self.codebooks:
            codebook.begin(rest)
            rest = rest - codebook.nearest(rest)[1]

    @torch.no_grad()
    def encode(self, z: Tensor) -> Tensor:
        rest, codes = self.project(z), []
        for codebook in self.codebooks:
            code, entries = codebook.nearest(rest)
            rest = rest - entries
            codes.append(code)
        return torch.stack(codes, 1)

    def entries_of(self, codes: Tensor) -> Tensor:
        """The sum of the entries of the first codebooks."""
        books = zip(codes.unbind(1), self.codebooks, strict=False)
        return torch.stack([functional.embedding(code, book.entries) for code, book in books]).sum(0)


class CodebookLayer(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self._codebook = Codebook(size, dim)


class Codebook(nn.Module):
    """Moving averages of the vectors that chose each entry, and of their number."""

    embedding_sum: Tensor
    cluster_usage: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("embedding_sum", 0.1 * torch.randn(size, dim))
        self.register_buffer("cluster_usage", torch.ones(size))

    @property
    def entries(self) -> Tensor:
        return self.embedding_sum / self.cluster_usage.clamp(min=USAGE_FLOOR)[:, None]

    @torch.no_grad()
    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The code of each vector, and its entry."""
        entries = self.entries
        code = (x @ entries.T - entries.square().sum(1) / 2).argmax(1)
        return code, entries[code]

    @torch.no_grad()
    def begin(self, x: Tensor) -> None:
        usage = len(x) / len(self.cluster_usage)
        self.cluster_usage.fill_(usage)
        self.embedding_sum.copy_(usage * self._random(x))

    @torch.no_grad()
    def learn(self, x: Tensor, code: Tensor) -> None:
        chosen = functional.one_hot(code, len(self.cluster_usage)).to(x.dtype)
        self.cluster_usage.mul_(DECAY).add_(chosen.sum(0), alpha=1 - DECAY)
        self.embedding_sum.mul_(DECAY).add_(chosen.T @ x, alpha=1 - DECAY)
        usage = len(x) / len(self.cluster_usage)
        unused = self.cluster_usage < UNUSED * usage
        self.cluster_usage.masked_fill_(unused, usage)
        self.embedding_sum.copy_(torch.where(unused[:, None], usage * self._random(x), self.embedding_sum))

    def _random(self, x: Tensor) -> Tensor:
        return x[torch.randint(len(x), (len(self.cluster_usage),), device=x.device)]
