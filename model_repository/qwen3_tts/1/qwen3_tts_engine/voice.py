"""A voice to clone, ready to speak with."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Voice:
    """What the encoders made of a reference: `x_vector` float32 [talker hidden], who speaks.

    In context (docs/model.md, Prompt rows) also `codes` int32 [frames, codebooks] and `text`, what is said there, and
    `state`, the codec's state behind those frames (a tensor [S]), from which speech goes on; all three None for the
    x-vector alone.
    """

    x_vector: np.ndarray
    codes: np.ndarray | None = None
    text: str | None = None
    state: Any = None

    @property
    def num_frames(self) -> int:
        return 0 if self.codes is None else len(self.codes)

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self.x_vector, self.codes, self.state) if array is not None)

    def alone(self) -> "Voice":
        """The same voice by its x-vector only."""
        return Voice(self.x_vector)
