"""What the codec client keeps for each stream, and what becomes of the waveform."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.audio import CODEBOOK_SIZE
from qwen3_tts_engine.codec.contract import OVERFLOW, PCM_SCALE
from qwen3_tts_engine.core import Chunks
from qwen3_tts_engine.pinned_memory import to_device
from qwen3_tts_engine.request import RequestError


class CodecStates:
    """The codec state of every slot, where the codec runs. Codes and history come with the chunks."""

    def __init__(self, states: Tensor, max_history: int, address: str | None = None) -> None:
        """`states` [slots + 1, S] is zero, and its last row remains so: where streams begin.

        `address` says where code2wav finds them itself (shared_memory.py), if it is to.
        """
        self.address = address
        self._states = states
        self._max_history = max_history
        # Its own, so that the codec's copies do not queue behind the talker's next tick.
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
        """What is called within runs on the codec's stream."""
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def wait(self) -> None:
        """Until the device has done what was asked of it on that stream."""
        if self._stream:
            self._stream.synchronize()

    def rows(self, chunks: Chunks) -> np.ndarray:
        """Rows of the states before and after the chunks, int32 [chunks, 2].

        Brings the state of a voice into the slot of a stream that begins behind its reference.
        """
        before = np.where(chunks.first, len(self._states) - 1, chunks.slots)
        for row in np.flatnonzero(chunks.first):
            voice = chunks.streams[row].voice
            if voice is not None and voice.state is not None:
                before[row] = slot = int(chunks.slots[row])
                self._states[slot] = voice.state
        rows: np.ndarray = np.stack([before, chunks.slots], axis=1).astype(np.int32)
        return rows

    def codes(self, chunks: Chunks) -> Tensor:
        """int32 [chunks, frames, codebooks]"""
        # A code that is none (`invalid_codes` says so) must not take the rest of the batch down.
        return torch.from_numpy(chunks.codes.clip(0, CODEBOOK_SIZE - 1))

    def history(self, chunks: Chunks) -> np.ndarray:
        """int32 [chunks, 1]"""
        history: np.ndarray = np.minimum(chunks.history, self._max_history).astype(np.int32)
        return history[:, None]

    def gather(self, rows: np.ndarray) -> Tensor:
        """[chunks, S] from the first column of `rows`."""
        return self._states.index_select(0, to_device(rows[:, 0].astype(np.int64), self.device))

    def store(self, rows: np.ndarray, states: Tensor) -> None:
        """Keep the states [chunks, S] for the next chunk of each stream."""
        self._states.index_copy_(0, to_device(rows[:, 1].astype(np.int64), self.device), states)


def invalid_codes(chunks: Chunks) -> dict[int, RequestError]:
    """The rows with a code outside 0..2047: what the codec makes of them is no speech."""
    wrong = ((chunks.codes < 0) | (chunks.codes >= CODEBOOK_SIZE)).any(axis=(1, 2))
    reason = RequestError(f"the talker gave a code outside 0..{CODEBOOK_SIZE - 1}")
    return dict.fromkeys(np.flatnonzero(wrong).tolist(), reason)


def to_pcm(waveform: Tensor) -> tuple[np.ndarray, dict[int, RequestError]]:
    """float32 [chunks, samples] → int16 of the same shape, and the rows that hold no audio because they overflowed.

    The exported codec leaves the clamp to ±1 to its reader.
    """
    pcm = (waveform.clamp(-1, 1) * PCM_SCALE).round().to(torch.int16)
    # Within the samples: each copy to the host waits for the device once more.
    pcm[:, 0].masked_fill_(~torch.isfinite(waveform.sum(-1)), OVERFLOW)
    samples = pcm.cpu().numpy()
    return samples, overflowed(samples)


def overflowed(samples: np.ndarray) -> dict[int, RequestError]:
    """The rows of int16 [chunks, samples] that hold no audio, which their first sample says."""
    error = RequestError("the codec gave no finite audio")
    return dict.fromkeys(np.flatnonzero(samples[:, 0] == OVERFLOW).tolist(), error)
