"""The codec state of each slot, and the conversion of waveforms to PCM."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.audio import CODEBOOK_SIZE
from qwen3_tts_engine.codec.contract import OVERFLOW, PCM_SCALE
from qwen3_tts_engine.codec.line import Line
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.pinned_memory import to_device
from qwen3_tts_engine.request import RequestError

# Rows of the states beside the slots'.
NUM_EXTRA = 2


class CodecStates:
    """Codec states on the codec's device; codes and history come with the chunks."""

    def __init__(self, states: Tensor, max_history: int, address: str | None = None, line: Line | None = None) -> None:
        """`states` [slots + NUM_EXTRA, S] is zero; its last row stays zero and starts new streams.

        `address` lets code2wav map the states (shared_memory.py); None sends them with each call. `line` then takes
        the calls, as soon as code2wav has.
        """
        self.address = address
        self.line = line
        self.zero_row, self.spare_row = len(states) - 1, len(states) - 2
        """Rows that belong to no slot; the spare one is for references."""
        self._states = states
        self._max_history = max_history
        # A separate stream, so that copies do not queue behind the talker's next tick.
        self._stream = torch.cuda.Stream(states.device) if states.device.type == "cuda" else None

    @property
    def dtype(self) -> torch.dtype:
        return self._states.dtype

    @property
    def state_size(self) -> int:
        return self._states.shape[1]

    @property
    def max_history(self) -> int:
        return self._max_history

    @property
    def device(self) -> torch.device:
        return self._states.device

    def on_stream(self) -> AbstractContextManager[object]:
        """Run the calls of the block on the codec's CUDA stream."""
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def wait(self) -> None:
        """Synchronise with that stream."""
        if self._stream:
            self._stream.synchronize()

    def copy_spare(self) -> Tensor:
        """A copy of the spare row [S], which the codec's next call may overwrite."""
        with self.on_stream():
            state = self._states[self.spare_row].clone()
        self.wait()
        return state

    def rows(self, chunks: Chunks) -> np.ndarray:
        """Rows of the states before and after the chunks, int32 [chunks, 2].

        Copies a voice's state into the slot of a stream that starts from its reference, and waits for that.
        """
        before = np.where(chunks.first, self.zero_row, chunks.slots)
        for row in np.flatnonzero(chunks.first):
            voice = chunks.streams[row].voice
            if voice is not None and voice.state is not None:
                before[row] = slot = int(chunks.slots[row])
                with self.on_stream():
                    self._states[slot] = voice.state
                # Another process cannot wait on this CUDA stream.
                self.wait()
        rows: np.ndarray = np.stack([before, chunks.slots], axis=1).astype(np.int32)
        return rows

    def codes(self, chunks: Chunks) -> np.ndarray:
        """int32 [chunks, frames, codebooks]"""
        # Clamp invalid codes so that one bad row cannot fail the batch; `invalid_codes` reports them.
        codes: np.ndarray = chunks.codes.clip(0, CODEBOOK_SIZE - 1)
        return codes

    def history(self, chunks: Chunks) -> np.ndarray:
        """int32 [chunks, 1]"""
        history: np.ndarray = np.minimum(chunks.history, self._max_history).astype(np.int32)
        return history[:, None]

    def gather(self, rows: np.ndarray) -> Tensor:
        """The states [chunks, S] in the first column of `rows`."""
        return self._states.index_select(0, to_device(rows[:, 0].astype(np.int64), self.device))

    def store(self, rows: np.ndarray, states: Tensor) -> None:
        """Store the states [chunks, S] for each stream's next chunk."""
        self._states.index_copy_(0, to_device(rows[:, 1].astype(np.int64), self.device), states)


def invalid_codes(chunks: Chunks) -> dict[int, RequestError]:
    """Rows with a code outside 0..2047; their audio is meaningless."""
    wrong = ((chunks.codes < 0) | (chunks.codes >= CODEBOOK_SIZE)).any(axis=(1, 2))
    reason = RequestError(f"the talker gave a code outside 0..{CODEBOOK_SIZE - 1}")
    return dict.fromkeys(np.flatnonzero(wrong).tolist(), reason)


def to_pcm(waveform: Tensor) -> tuple[np.ndarray, dict[int, RequestError]]:
    """float32 [chunks, samples] → int16 of the same shape, and the rows that overflowed and have no audio.

    Clamps to ±1, which the exported codec does not.
    """
    pcm = (waveform.clamp(-1, 1) * PCM_SCALE).round().to(torch.int16)
    # Marked in the samples: a second copy to the host would wait for the device again.
    pcm[:, 0].masked_fill_(~torch.isfinite(waveform.sum(-1)), OVERFLOW)
    samples = pcm.cpu().numpy()
    return samples, overflowed(samples)


def overflowed(samples: np.ndarray) -> dict[int, RequestError]:
    """Rows of int16 [chunks, samples] without audio, marked by their first sample."""
    error = RequestError("the codec gave no finite audio")
    return dict.fromkeys(np.flatnonzero(samples[:, 0] == OVERFLOW).tolist(), error)
