"""The operations of a tick, implemented in PyTorch (torch_ops) and as fused CUDA kernels (kernel_ops)."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from qwen3_tts_engine.talker.kv_cache import FrameCache, PagedCache
from qwen3_tts_engine.talker.slot_state import SlotState
from qwen3_tts_engine.talker.text_tracker import TextTracker
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear


@dataclass
class Hidden:
    """The residual stream, [rows, H].

    `squares`, where a product left them, are float32 [parts, rows], at most one part for 64 values, and add up to each
    row's sum of squares. `together` are rows of one prompt, which are always computed together.
    """

    rows: Tensor
    squares: Tensor | None = None
    together: bool = False

    def every(self, count: int) -> "Hidden":
        """The last of every `count` rows."""
        squares = None if self.squares is None else self.squares[:, count - 1 :: count]
        return Hidden(self.rows[count - 1 :: count], squares)


class Attention(Protocol):
    """Attention of one layer, bound to a cache."""

    def __call__(self, layer: int, hidden: Hidden, weights: LayerWeights) -> Tensor:
        """[rows, H] → [rows, q heads·D]: RMSNorm and the product of queries, keys and values, then norms and rotates
        them, stores keys and values, attends."""


class Rows(Protocol):
    """The rows of one tick, read from their slots.

    hidden is the talker's input [rows, H], positions int64 [rows]; codes int64 [rows, codebooks] are filled as drawn.
    """

    slots: Tensor
    hidden: Tensor
    positions: Tensor
    codes: Tensor

    def draw_first(self, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        """Draw codebook 0 from float32 [rows, vocabulary] and write its row of `inputs` to `out` [rows, width]."""

    def draw(self, codebook: int, logits: Tensor, inputs: Tensor, out: Tensor) -> None:
        """Draw a later codebook; `inputs` [codes, width] are the embeddings of that codebook."""

    def advance(self, text_table: Tensor, code_table: Tensor, pad_text_id: int) -> None:
        """Write each frame's feedback to its slot's input and increment frame and position.

        The padding slot stays at position 0: it has one page, and attention costs grow with the position.
        """


class Tracking(Protocol):
    """The rows of a tick whose slots have word times; attention that is bound to it observes their queries."""

    def finish(self) -> None:
        """Update SlotState.spoken from what all layers observed."""


class Ops(Protocol):
    """Shapes are [rows, features]; norms are RMSNorm in float32 (docs/model.md, Decoder stack)."""

    def fold(self, norm: Tensor, weight: Tensor) -> NormLinear:
        """The norm and the product [outputs, inputs] after it, in the form that the operations below take."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x @ weight.T + bias; of tables that are made at start."""

    def rms_norm(self, x: Tensor, norm: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        """x / rms(x) · norm."""

    def norm_linear(
        self, x: Hidden, product: NormLinear, eps: float, *, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """RMSNorm, then x @ weight.T + bias, in the dtype of `x`."""

    def norm_logits(self, x: Hidden, product: NormLinear, eps: float) -> Tensor:
        """RMSNorm, then x @ weight.T in float32."""

    def norm_gated(self, x: Hidden, gate_up: NormLinear, eps: float) -> Tensor:
        """RMSNorm, then SiLU(gate) · up; the weight of gate_up is [2·I, H]."""

    def add_linear(self, residual: Hidden, x: Tensor, weight: Tensor) -> None:
        """residual += x @ weight.T, in place."""

    def embed(self, table: Tensor, indices: Tensor) -> Tensor:
        """The sum of the table's rows at int64 [rows, terms]; -1 is the last row, which is zero."""

    def paged_attention(
        self,
        cache: PagedCache,
        slots: Tensor,
        positions: Tensor,
        *,
        prompts: int = 0,
        tracking: Any = None,
    ) -> Attention:
        """Causal attention for rows at `positions` of `slots`, int64 [rows].

        The last `prompts` rows are of prompts: a slot's have consecutive positions and attend to each other. Each row
        before them has a slot of its own. No row attends to what another slot's rows store now. `tracking` is of the
        rows before them.
        """

    def tracking(
        self, tracker: TextTracker, state: SlotState, cache: PagedCache, slots: Tensor, positions: Tensor
    ) -> Tracking:
        """Tracking for rows at `positions` of `slots`, int64 [rows]."""

    def frame_attention(self, cache: FrameCache, start: int, count: int) -> Attention:
        """Attention for `count` positions from `start` on of every row; hidden's rows are ordered [row, position]."""

    def rows(self, state: SlotState, slots: Tensor) -> Rows:
        """The rows of a tick for int64 [rows] slots."""
