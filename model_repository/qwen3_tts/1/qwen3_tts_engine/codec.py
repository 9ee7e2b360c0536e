"""What the codec client keeps for each stream, and what becomes of the waveform."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.chunker import Chunks
from qwen3_tts_engine.code2wav import CODEBOOK_SIZE
from qwen3_tts_engine.request import RequestError

PCM_SCALE = 32767


class CodecStates:
    """The codec state of every slot, where the codec runs. Codes and history come with the chunks."""

    def __init__(self, num_slots: int, state_size: int, max_history: int, dtype: torch.dtype, device: torch.device):
        self._states = torch.zeros(num_slots, state_size, dtype=dtype, device=device)
        self._max_history = max_history
        # Its own, so that the codec's copies do not queue behind the talker's next tick.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

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

    def inputs(self, chunks: Chunks) -> tuple[Tensor, Tensor, Tensor]:
        """codes int32 [chunks, frames, codebooks], state [chunks, S], history int32 [chunks, 1]."""
        slots = self._slots(chunks)
        self._start(chunks, np.flatnonzero(chunks.first))
        history = np.minimum(chunks.history, self._max_history).astype(np.int32)
        # A code that is none (`invalid_codes` says so) must not take the rest of the batch down.
        codes = torch.from_numpy(chunks.codes.clip(0, CODEBOOK_SIZE - 1))
        return codes, self._states[slots], torch.from_numpy(history)[:, None]

    def store(self, chunks: Chunks, states: Tensor) -> None:
        """Keep the states [chunks, S] for the next chunk of each stream."""
        self._states.index_copy_(0, self._slots(chunks), states)

    def _start(self, chunks: Chunks, rows: np.ndarray) -> None:
        """A slot's last stream left its state behind: a new one starts from zeros, or behind its voice's reference."""
        if not len(rows):
            return
        self._states.index_fill_(0, self._to_device(chunks.slots[rows]), 0)
        for stream, slot, first in zip(chunks.streams, chunks.slots, chunks.first, strict=False):
            if first and stream.voice is not None and stream.voice.state is not None:
                self._states[int(slot)] = stream.voice.state

    def _slots(self, chunks: Chunks) -> Tensor:
        return self._to_device(chunks.slots)

    def _to_device(self, indices: np.ndarray) -> Tensor:
        return torch.from_numpy(indices).to(self._states.device)


def invalid_codes(chunks: Chunks) -> dict[int, RequestError]:
    """The rows with a code outside 0..2047: what the codec makes of them is no speech."""
    wrong = ((chunks.codes < 0) | (chunks.codes >= CODEBOOK_SIZE)).any(axis=(1, 2))
    reason = RequestError(f"the talker gave a code outside 0..{CODEBOOK_SIZE - 1}")
    return dict.fromkeys(np.flatnonzero(wrong).tolist(), reason)


def to_pcm(waveform: Tensor) -> tuple[np.ndarray, dict[int, RequestError]]:
    """float32 [chunks, samples] → int16 of the same shape, and the rows that hold no audio because they overflowed.

    The exported codec leaves the clamp to ±1 to its reader.
    """
    finite = torch.isfinite(waveform.sum(-1)).cpu()
    pcm = (waveform.clamp(-1, 1) * PCM_SCALE).round().to(torch.int16)
    failed: dict[int, RequestError] = {
        int(row): RequestError("the codec gave no finite audio") for row in torch.nonzero(~finite)
    }
    return pcm.cpu().numpy(), failed
