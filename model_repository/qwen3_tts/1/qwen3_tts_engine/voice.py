"""A voice to clone."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Voice:
    """A reference as the encoders represent it: the speaker's `x_vector`, float32 [talker hidden].

    In context (docs/model.md, Prompt rows) also `codes` int32 [frames, codebooks], their transcript `text`, and
    `state`, a tensor [S]: the codec's state after those frames, where speech continues. All three are None for an
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
        """The voice without its reference context."""
        return Voice(self.x_vector)
