"""Calls of code2wav."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.codec.states import CodecStates, invalid_codes, overflowed, to_pcm
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.interfaces import CallModel, ModelCall
from qwen3_tts_engine.request import RequestError

Watch = Callable[[str], AbstractContextManager[object]]
"""Wraps a call of the named model."""


class ModelCodec:
    """interfaces.CodecClient: one call of code2wav for all chunks; states are tensors of the call, for any backend."""

    def __init__(self, states: CodecStates, call_model: CallModel) -> None:
        self.states = states
        self._call_model = call_model

    def announce(self) -> None:
        if self.states.line and self.states.line.is_open():
            self.states.line.announce()

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        pcm, failed = self._decode(chunks, self.states.rows(chunks))
        return pcm, failed | invalid_codes(chunks)

    def _decode(self, chunks: Chunks, rows: np.ndarray) -> tuple[np.ndarray, dict[int, RequestError]]:
        with self.states.on_stream():
            inputs = {
                contract.CODES: torch.from_numpy(self.states.codes(chunks)),
                contract.STATE: self.states.gather(rows),
                contract.HISTORY: torch.from_numpy(self.states.history(chunks)),
            }
            outputs = [contract.WAVEFORM, contract.STATE_OUT]
            waveform, state_out = self._call_model(ModelCall(contract.MODEL_NAME, inputs, outputs, self.states.device))
            self.states.store(rows, state_out)
            # Copies the samples to the host, which also waits for the stored states.
            return to_pcm(waveform)

    def state_after(self, codes: torch.Tensor, max_chunk_frames: int) -> torch.Tensor:
        """The codec state [S] after codes int32 [1, frames, codebooks] of a reference; discards their waveform.

        Called by one thread at a time.
        """
        state = torch.zeros(1, self.states.state_size, dtype=self.states.dtype)
        for chunk, history in self._split(codes, max_chunk_frames):
            past = torch.tensor([[history]], dtype=torch.int32)
            inputs = {contract.CODES: chunk, contract.STATE: state, contract.HISTORY: past}
            [state_out] = self._call_model(ModelCall(contract.MODEL_NAME, inputs, [contract.STATE_OUT]))
            state = state_out.cpu()
        return state[0].to(self.states.device, copy=True)

    def _split(self, codes: torch.Tensor, max_chunk_frames: int) -> Iterator[tuple[torch.Tensor, int]]:
        """Chunks of codes [1, frames, codebooks], each with its history."""
        for start, stop in contract.split_frames(codes.shape[1], max_chunk_frames):
            yield codes[:, start:stop].contiguous(), min(start, self.states.max_history)


class SharedStatesCodec(ModelCodec):
    """Shared states that code2wav maps, so that no tensor of a call is on a GPU.

    GPU tensors pass through three processes that wait for each other's copies: with one stream that took 3.5 ms in
    addition to the codec's own time (measured on one H200).
    """

    def __init__(self, states: CodecStates, call_model: CallModel, watch: Watch = lambda model: nullcontext()) -> None:
        super().__init__(states, call_model)
        self._watch = watch

    def _decode(self, chunks: Chunks, rows: np.ndarray) -> tuple[np.ndarray, dict[int, RequestError]]:
        # Without any operation of PyTorch: after a pause each takes the host up to 0.1 ms.
        places = np.concatenate([rows, self.states.history(chunks)], axis=1)
        samples = self._advance(self.states.codes(chunks), places)
        return samples, overflowed(samples)

    def state_after(self, codes: torch.Tensor, max_chunk_frames: int) -> torch.Tensor:
        before = self.states.zero_row
        for chunk, history in self._split(codes, max_chunk_frames):
            self._advance(chunk.numpy(), np.array([[before, self.states.spare_row, history]], np.int32))
            before = self.states.spare_row
        return self.states.copy_spare()

    def _advance(self, codes: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Samples int16 [chunks, samples] of codes int32 [chunks, frames, codebooks] and places int32 [chunks, 3]."""
        if self.states.line and self.states.line.is_open():
            with self._watch(contract.MODEL_NAME):
                return self.states.line.call(codes, places)
        inputs = {contract.CODES: torch.from_numpy(codes), contract.PLACES: torch.from_numpy(places)}
        address = {contract.STATES: self.states.address}
        [pcm] = self._call_model(ModelCall(contract.MODEL_NAME, inputs, [contract.PCM], parameters=address))
        samples: np.ndarray = pcm.numpy()
        return samples
