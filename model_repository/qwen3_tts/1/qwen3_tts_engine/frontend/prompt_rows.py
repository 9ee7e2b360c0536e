"""Collects the rows of a prompt (docs/model.md, Prompt rows)."""

import numpy as np

from qwen3_tts_engine.core.streams import NONE, Prompt


class PromptRows:
    def __init__(self, num_codebooks: int) -> None:
        self._num_codebooks = num_codebooks
        self._text: list[int] = []
        # Of codebook 0.
        self._codes: list[int] = []
        self._frames: dict[int, np.ndarray] = {}
        self._vector: np.ndarray | None = None
        self._vector_row = NONE

    def add(self, text_ids: list[int], code: int) -> None:
        """Add rows with `code` in codebook 0."""
        self._text += text_ids
        self._codes += [code] * len(text_ids)

    def add_frames(self, text_ids: list[int], frames: np.ndarray) -> None:
        """Add rows with whole frames, int32 [rows, codebooks]."""
        self._frames[len(self._text)] = frames
        self.add(text_ids, NONE)

    def add_vector(self, text_id: int, vector: np.ndarray) -> None:
        """Add the x-vector row of a cloned voice."""
        self._vector, self._vector_row = vector, len(self._text)
        self.add([text_id], NONE)

    def prompt(self, trailing: list[int], num_spoken: int) -> Prompt:
        """The prompt of the rows, which `trailing` ids follow."""
        codes = np.full((len(self._codes), self._num_codebooks), NONE, np.int32)
        codes[:, 0] = self._codes
        for row, frames in self._frames.items():
            codes[row : row + len(frames)] = frames
        return Prompt(np.array(self._text, np.int32), codes, trailing, num_spoken, self._vector, self._vector_row)
