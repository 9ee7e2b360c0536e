"""The operations of the step. Sequences are [batch, positions, channels], channels contiguous."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from code2wav_step.weights import Depthwise, Product, Unit

Sequences = dict[str, Tensor]


class Ops(Protocol):
    def build(self, run: Callable[[], object]) -> None:
        """Compiles the operations of `run` without executing them."""
        ...

    def address_states(self, addresses: Tensor) -> bool:
        """From now on the states of entry i are at `addresses` int64 [2, B] on the device: its own and the next one.

        Returns False, and changes nothing, if that is not possible.
        """
        ...

    def next_state(self, state: Tensor) -> Tensor:
        """Memory for the next states; `state` itself when states have addresses."""
        ...

    def open(self, state: Tensor, frames: int) -> Sequences:
        """The input of each causal convolution, by its piece of the state: the past, and room for the new."""
        ...

    def close(self, sequences: Sequences, state_out: Tensor) -> None:
        """Writes the end of each sequence to its piece of the next state."""
        ...

    def embed(self, codes: Tensor, table: Tensor, out: Tensor) -> None:
        """The sum of the table's rows for a frame's codes int32 [batch, frames, quantizers]."""
        ...

    def product(
        self,
        x: Tensor,
        layer: Product,
        *,
        residual: Tensor | None = None,
        out: Tensor | None = None,
        active: Tensor | None = None,
    ) -> Tensor:
        """The layer's result plus the residual in `out`, its SnakeBeta in `active`.

        Both may hold n positions for one of the result: they are [batch, n · positions, outputs / n]. Without either,
        `out` is allocated. Returns `out`, or `active` if only that is given.
        """
        ...

    def attend(self, qkv: Tensor, layer: int, state: Tensor, history: Tensor, state_out: Tensor) -> Tensor:
        """Attention of new frames [batch, frames, 3 · heads · head_dim] over window and chunk, shifting the window."""
        ...

    def depthwise(self, x: Tensor, layer: Depthwise) -> Tensor:
        """The normalised result of the convolution."""
        ...

    def unit(self, x: Tensor, unit: Unit, residual: Tensor, out: Tensor | None, active: Tensor) -> None:
        """A residual unit from its activated input: `out` gets the sum, `active` its SnakeBeta."""
        ...

    def last(self, x: Tensor, layer: Depthwise) -> Tensor:
        """The waveform fp32 [batch, positions]."""
        ...

    def to_int16(self, waveform: Tensor) -> Tensor:
        """See pcm.to_int16."""
        ...
