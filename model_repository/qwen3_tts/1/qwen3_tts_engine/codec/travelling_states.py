"""Calls of a code2wav that has no rows, a TensorRT plan: the talker keeps them, and states travel with each call."""

import threading
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.contract import (
    CODES,
    HISTORY,
    MODEL_NAME,
    NO_SAMPLE,
    PCM_SCALE,
    STATE,
    STATE_OUT,
    WAVEFORM,
)
from qwen3_tts_engine.interfaces import CallModel, ModelCall
from qwen3_tts_engine.pinned_memory import to_device


class TravellingStates:
    """client.Call; no other caller can reach the rows, so that their keys do not matter."""

    def __init__(self, states: Tensor, call_model: CallModel) -> None:
        """`states` [rows, S] is zero."""
        self._states, self._call_model = states, call_model
        # A separate stream, so that copies do not queue behind the talker's next tick.
        self._stream = torch.cuda.Stream(states.device) if states.device.type == "cuda" else None
        self._lock = threading.Lock()

    def call(self, codes: np.ndarray, places: np.ndarray) -> np.ndarray:
        before, after, history, _ = places.T
        with self._lock, self._on_stream():
            if ((before == after) & (history == 0)).all():
                # A claim of the talker's own rows: asks whether the codec can be called.
                self._step(codes[:1], before[:1], history[:1])
                return np.zeros((len(codes), codes.shape[1] * SAMPLES_PER_FRAME), np.int16)
            waveform, state_out = self._step(codes, before, history)
            self._states.index_copy_(0, to_device(after.astype(np.int64), self._states.device), state_out)
            # Copies the samples to the host, which also waits for the stored states.
            return to_pcm(waveform)

    def _step(self, codes: np.ndarray, before: np.ndarray, history: np.ndarray) -> list[Tensor]:
        """The waveform, and the states after it."""
        inputs = {
            CODES: torch.from_numpy(codes),
            STATE: self._states.index_select(0, to_device(before.astype(np.int64), self._states.device)),
            HISTORY: torch.from_numpy(history[:, None].copy()),
        }
        return self._call_model(ModelCall(MODEL_NAME, inputs, [WAVEFORM, STATE_OUT], self._states.device))

    def _on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()


def to_pcm(waveform: Tensor) -> np.ndarray:
    """float32 [chunks, samples] → int16 of the same shape; rows that overflowed are marked.

    Clamps to ±1, which the exported codec does not.
    """
    pcm = (waveform.clamp(-1, 1) * PCM_SCALE).round().to(torch.int16)
    # Marked in the samples: a second copy to the host would wait for the device again.
    overflowed = ~torch.isfinite(waveform.sum(-1))
    pcm[:, 0].masked_fill_(overflowed, NO_SAMPLE)
    pcm[:, 1].masked_fill_(overflowed, 0)
    samples: np.ndarray = pcm.cpu().numpy()
    return samples
