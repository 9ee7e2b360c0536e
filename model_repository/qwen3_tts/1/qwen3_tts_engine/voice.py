"""A voice to clone."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Voice:
    """A reference as the encoders represent it: the speaker's `x_vector`, float32 [talker hidden].

    In context (docs/model.md, Prompt rows) also `codes` int32 [frames, codebooks], after which speech continues, and
    their transcript `text`. Both are None for an x-vector alone.
    """

    x_vector: np.ndarray
    codes: np.ndarray | None = None
    text: str | None = None

    @property
    def num_frames(self) -> int:
        return 0 if self.codes is None else len(self.codes)

    def alone(self) -> "Voice":
        """The voice without its reference context."""
        return Voice(self.x_vector)
