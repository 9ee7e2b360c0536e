"""The talker's calls of code2wav: chunks of streams, claims of rows, and the references of voices."""

from collections.abc import Callable

import numpy as np

from qwen3_tts_engine.audio import CODEBOOK_SIZE, NUM_CODEBOOKS
from qwen3_tts_engine.codec.contract import NO_SAMPLE, ZERO_ROW, RowCounts, split_frames
from qwen3_tts_engine.codec.rows import VoiceRows, claim_rows
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.voice import Voice

Call = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Samples int16 [rows, samples] of codes int32 [rows, frames, codebooks] and places int32 [rows, PLACES_SIZE]. Raises
RequestError."""


class Code2Wav:
    """interfaces.CodecClient. Several threads may call it, with different streams."""

    def __init__(
        self, call: Call, key: int, counts: RowCounts, max_history: int, max_chunk_frames: int,
        announce: Callable[[], None] = lambda: None, max_calls: int = 1,
    ) -> None:  # fmt: skip
        """`announce` says that a call follows within milliseconds; `max_calls` is CodecClient's."""
        self._call, self._key, self._counts = call, key, counts
        self._max_history, self._max_chunk_frames = max_history, max_chunk_frames
        self.announce, self.max_calls = announce, max_calls
        self._slots = np.empty(0, np.int64)
        self._voices = VoiceRows([], self._decode_reference)

    @property
    def num_voices(self) -> int:
        """Voices whose references stay decoded."""
        return self._counts.voices

    def claim(self) -> None:
        """Own the rows of all slots and voices, which nobody else can touch from then on; before any other call.

        Raises RequestError.
        """
        rows = claim_rows(self._counts.total, self._claim)
        self._slots = rows[: self._counts.slots]
        self._voices = VoiceRows(rows[self._counts.slots :].tolist(), self._decode_reference)

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        """Samples int16 [chunks, samples], and the errors of chunks without audio."""
        to = self._slots[chunks.slots]
        begun = ((row, chunks.streams[row].voice) for row in np.flatnonzero(chunks.first).tolist())
        voices = {row: voice for row, voice in begun if voice and voice.codes is not None}
        before, failed = np.where(chunks.first, ZERO_ROW, to), invalid_codes(chunks)
        with self._voices.holding(list(voices.values())) as held:
            for row, voice in voices.items():
                found = held[voice]
                if isinstance(found, RequestError):
                    failed[row] = found
                else:
                    before[row] = found
            # Invalid codes are clamped so that one bad row cannot fail the batch.
            codes = chunks.codes.clip(0, CODEBOOK_SIZE - 1)
            samples = self._call(codes, self._places(before, to, chunks.history))
        silent = without_audio(samples)
        for row in voices.keys() & silent.keys():
            # For instance because code2wav was loaded again.
            self._voices.forget(voices[row])
        return samples, silent | failed

    def prime(self, voice: Voice) -> None:
        """Decodes the reference of a voice in context, unless that has been done lately. Raises RequestError."""
        if voice.codes is not None:
            with self._voices.holding([voice]) as held:
                if isinstance(error := held[voice], RequestError):
                    raise error

    def _claim(self, rows: np.ndarray) -> np.ndarray:
        """A row that the same call reads and writes without history is claimed, and keeps its state."""
        codes = np.zeros((len(rows), 1, NUM_CODEBOOKS), np.int32)
        samples = self._call(codes, self._places(rows, rows, np.zeros(len(rows))))
        granted: np.ndarray = samples[:, 0] != NO_SAMPLE
        return granted

    def _decode_reference(self, voice: Voice, row: int) -> None:
        assert voice.codes is not None
        for start, stop in split_frames(len(voice.codes), self._max_chunk_frames):
            before = np.array([row if start else ZERO_ROW])
            places = self._places(before, np.array([row]), np.array([start]))
            if errors := without_audio(self._call(voice.codes[None, start:stop].astype(np.int32), places)):
                raise errors[0]

    def _places(self, before: np.ndarray, to: np.ndarray, history: np.ndarray) -> np.ndarray:
        history = np.minimum(history, self._max_history)
        places: np.ndarray = np.stack([before, to, history, np.full(len(to), self._key)], axis=1).astype(np.int32)
        return places


def invalid_codes(chunks: Chunks) -> dict[int, RequestError]:
    """Rows with a code outside 0..2047; their audio is meaningless."""
    wrong = ((chunks.codes < 0) | (chunks.codes >= CODEBOOK_SIZE)).any(axis=(1, 2))
    reason = RequestError(f"the talker gave a code outside 0..{CODEBOOK_SIZE - 1}")
    return dict.fromkeys(np.flatnonzero(wrong).tolist(), reason)


def without_audio(samples: np.ndarray) -> dict[int, RequestError]:
    """Rows of int16 [rows, samples] that are marked (contract.NO_SAMPLE)."""
    return {int(row): _error(samples[row]) for row in np.flatnonzero(samples[:, 0] == NO_SAMPLE)}


def _error(samples: np.ndarray) -> RequestError:
    if samples[1] == NO_SAMPLE:
        return RequestError("the codec has given this stream's row to another caller: was code2wav loaded again?")
    return RequestError("the codec gave no finite audio")
