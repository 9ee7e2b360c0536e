"""Collects the rows of a prompt (docs/model.md, Prompt rows)."""

import hashlib
from collections.abc import Iterator

import numpy as np

from qwen3_tts_engine.core.streams import NONE, Prompt


class PromptRows:
    def __init__(self, num_codebooks: int, page_size: int) -> None:
        """`page_size` is that of the key/value cache."""
        self._num_codebooks, self._page_size = num_codebooks, page_size
        self._prefix_rows = self._text_at = 0
        self._text: list[int] = []
        # Codes of codebook 0.
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

    def begin_text(self, upcoming: int = 0) -> None:
        """The spoken tokens follow `upcoming` more rows."""
        self._text_at = len(self._text) + upcoming

    def end_prefix(self, upcoming: int = 0) -> None:
        """The rows so far, and as many `upcoming` ones, are the prefix that prompts of the same voice share."""
        self._prefix_rows = len(self._text) + upcoming

    def prompt(self, trailing: list[int], num_spoken: int) -> Prompt:
        """The prompt of the rows, which `trailing` ids follow."""
        codes = np.full((len(self._codes), self._num_codebooks), NONE, np.int32)
        codes[:, 0] = self._codes
        for row, frames in self._frames.items():
            codes[row : row + len(frames)] = frames
        text = np.array(self._text, np.int32)
        hashes = tuple(self._prefix_hashes(text, codes))
        return Prompt(text, codes, trailing, num_spoken, self._text_at, self._vector, self._vector_row, hashes)

    def _prefix_hashes(self, text_ids: np.ndarray, code_ids: np.ndarray) -> Iterator[bytes]:
        """Hashes of the prefix's whole pages. One row is left to prefill at least: the first frame requires it."""
        digest = b""
        for end in range(self._page_size, min(self._prefix_rows, len(text_ids) - 1) + 1, self._page_size):
            page = slice(end - self._page_size, end)
            has_vector = self._vector is not None and page.start <= self._vector_row < end
            vector = self._vector.tobytes() if has_vector and self._vector is not None else b""
            contents = (digest, text_ids[page].tobytes(), code_ids[page].tobytes(), vector)
            yield (digest := hashlib.blake2b(b"".join(contents), digest_size=16).digest())
