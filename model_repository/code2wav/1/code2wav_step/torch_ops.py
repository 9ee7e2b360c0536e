"""The operations of the step in PyTorch: for any device, and the reference for the kernels."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from code2wav_step.config import KEYS, VALUES, Contract, StepConfig
from code2wav_step.ops import Sequences
from code2wav_step.weights import LAYER_NORM_EPS, Depthwise, Product, Unit

# Acts as -inf in the softmax, and is finite in FP16.
MASKED_SCORE = -3e4


class TorchOps:
    def __init__(self, config: StepConfig, device: torch.device) -> None:
        self._config, self._pieces = config, config.pieces
        slots = torch.arange(config.slots, device=device)
        self.cosine, self.sine = rotation(config, device)
        frames = slots[: config.contract.max_frames, None]
        self._band = (slots >= frames) & (slots <= frames + config.window)
        self._needed_history = config.window - slots

    def build(self, run: Callable[[], object]) -> None:
        """Nothing to build."""

    def address_states(self, addresses: Tensor) -> bool:
        return False

    def next_state(self, state: Tensor) -> Tensor:
        return torch.empty_like(state)

    def open(self, state: Tensor, frames: int) -> Sequences:
        sequences = {}
        for name, positions in self._config.positions.items():
            piece = self._pieces[name]
            channels, past = piece.shape
            sequence = state.new_empty(len(state), past + positions * frames, channels)
            sequence[:, :past] = _part(state, piece.offset, piece.shape).transpose(1, 2)
            sequences[name] = sequence
        return sequences

    def close(self, sequences: Sequences, state_out: Tensor) -> None:
        for name, sequence in sequences.items():
            piece = self._pieces[name]
            _part(state_out, piece.offset, piece.shape).copy_(sequence[:, -piece.shape[1] :].transpose(1, 2))

    def embed(self, codes: Tensor, table: Tensor, out: Tensor) -> None:
        config = self._config
        offsets = torch.arange(config.num_quantizers, dtype=torch.int32, device=codes.device) * config.codebook_size
        # Clamp invalid codes so that one bad row cannot read out of bounds and fail the batch.
        rows = codes.clamp(0, config.codebook_size - 1) + offsets
        out.copy_(functional.embedding(rows, table).float().sum(dim=2))

    def product(
        self,
        x: Tensor,
        layer: Product,
        *,
        residual: Tensor | None = None,
        out: Tensor | None = None,
        active: Tensor | None = None,
    ) -> Tensor:
        y = _bare_product(x, layer)
        if layer.bias is not None:
            y = (y + layer.bias).to(x.dtype)
        if layer.activation == "gated":
            gate, up = y.chunk(2, dim=2)
            y = functional.silu(gate) * up
        elif layer.activation == "gelu":
            y = functional.gelu(y)
        if residual is not None:
            y = y + residual.reshape(y.shape)
        if active is not None:
            assert layer.alpha is not None
            assert layer.inverse_beta is not None
            active.copy_(snake(y, layer.alpha, layer.inverse_beta).reshape(active.shape))
            return active if out is None else out.copy_(y.reshape(out.shape))
        return y if out is None else out.copy_(y.reshape(out.shape))

    def attend(self, qkv: Tensor, layer: int, state: Tensor, history: Tensor, state_out: Tensor) -> Tensor:
        config, frames = self._config, qkv.shape[1]
        slots = config.window + frames
        query, key, value = qkv.unflatten(2, (3, config.num_heads, config.head_dim)).unbind(2)
        keys, values = (
            torch.cat([self._window(state, name, layer), fresh], dim=1)
            for name, fresh in ((KEYS, key), (VALUES, value))
        )
        for name, window in ((KEYS, keys), (VALUES, values)):
            self._window(state_out, name, layer).copy_(window[:, frames:])
        cosine, sine = self.cosine[:slots, None], self.sine[:slots, None]
        query = _rotate(query, cosine[-frames:], sine[-frames:])
        scores = query.transpose(1, 2) @ _rotate(keys, cosine, sine).permute(0, 2, 3, 1)
        # A frame always sees itself, whatever history the caller passes.
        valid = self._needed_history[:slots] <= history.clamp(min=0)
        visible = self._band[:frames, :slots] & valid[:, None]
        scores = (scores.float() * config.head_dim**-0.5).masked_fill(~visible[:, None], MASKED_SCORE)
        y: Tensor = scores.softmax(dim=-1).to(qkv.dtype) @ values.transpose(1, 2)
        return y.transpose(1, 2).flatten(2)

    def depthwise(self, x: Tensor, layer: Depthwise) -> Tensor:
        y = functional.conv1d(
            x.float().transpose(1, 2), layer.weight.T[:, None], layer.bias, groups=layer.weight.shape[1]
        )
        return functional.layer_norm(y.transpose(1, 2), y.shape[1:2], eps=LAYER_NORM_EPS).to(x.dtype)

    def unit(self, x: Tensor, unit: Unit, residual: Tensor, out: Tensor | None, active: Tensor) -> None:
        inner = torch.empty_like(residual)
        self.product(x, unit.conv, active=inner)
        self.product(inner, unit.pointwise, residual=residual, out=out, active=active)

    def to_int16(self, waveform: Tensor) -> Tensor:
        return to_int16(waveform, self._config.contract)

    def last(self, x: Tensor, layer: Depthwise) -> Tensor:
        weight = layer.weight.T[None].to(x.dtype)
        return functional.conv1d(x.transpose(1, 2), weight, layer.bias.to(x.dtype)).flatten(1).float()

    def _window(self, state: Tensor, name: str, layer: int) -> Tensor:
        """Past keys or values of a layer, [batch, window, heads, head_dim], in the state."""
        piece = self._pieces[name]
        shape = piece.shape[1:]
        return _part(state, piece.offset + layer * (piece.size // piece.shape[0]), shape)


def rotation(config: StepConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine fp32 [slots, head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64, device=device) / config.head_dim
    slots = torch.arange(config.slots, device=device)
    angles = slots[:, None] / config.rope_theta**exponents
    return angles.cos().float(), angles.sin().float()


def snake(x: Tensor, alpha: Tensor, inverse_beta: Tensor) -> Tensor:
    """x + sin²(αx) / β, in FP32: in less, the sine's argument is off by whole periods."""
    exact = x.float()
    sine = torch.sin(exact * alpha)
    return (exact + sine * sine * inverse_beta).to(x.dtype)


def _bare_product(x: Tensor, layer: Product) -> Tensor:
    y: Tensor = functional.linear(_windows(x, layer), layer.weight)
    if layer.norm_eps is None:
        return y
    exact = x.float()
    scale = torch.rsqrt((exact * exact).mean(dim=2, keepdim=True) + layer.norm_eps)
    return (y.float() * scale).to(x.dtype)


def _windows(x: Tensor, layer: Product) -> Tensor:
    """The input rows of each result, [batch, positions, taps · channels]."""
    if layer.taps == 1:
        return x
    batch, length, channels = x.shape
    positions = length - (layer.taps - 1) * layer.dilation
    strides = (x.stride(0), channels, layer.dilation * channels, 1)
    return x.as_strided((batch, positions, layer.taps, channels), strides, x.storage_offset()).flatten(2)


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of [batch, slots, heads, head_dim], halves paired."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


def _part(state: Tensor, offset: int, shape: tuple[int, ...]) -> Tensor:
    part: Tensor = state[:, offset : offset + math.prod(shape)].unflatten(1, shape)
    return part


def to_int16(waveform: Tensor, contract: Contract) -> Tensor:
    """pcm.to_int16."""
    pcm = (waveform.clamp(-1, 1) * contract.pcm_scale).round().to(torch.int16)
    overflowed = ~torch.isfinite(waveform.sum(-1))
    pcm[:, 0].masked_fill_(overflowed, contract.no_sample)
    pcm[:, 1].masked_fill_(overflowed, 0)
    return pcm
