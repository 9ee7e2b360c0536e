"""Calls the codec and the reference encoders through Triton (business logic scripting)."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack

from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.codec.states import CodecStates, invalid_codes, overflowed, to_pcm
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.lifecycle.liveness import CallWatch
from qwen3_tts_engine.request import RequestError, ServerStarting, Unavailable
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices import encoders

# Calls without a response yet.
CALLS = CallWatch()

CPU = torch.device("cpu")
SERVER_STARTS = "Server not ready"
MODEL_IS_GONE = ("no available versions", "is not ready")


class BlsCodec:
    """interfaces.CodecClient: one call of code2wav for all chunks; states are tensors of the call, for any backend."""

    def __init__(self, states: CodecStates) -> None:
        self.states = states

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        with self.states.on_stream():
            pcm, failed = self._decode(chunks, self.states.rows(chunks))
        return pcm, failed | invalid_codes(chunks)

    def _decode(self, chunks: Chunks, rows: np.ndarray) -> tuple[np.ndarray, dict[int, RequestError]]:
        inputs = {
            contract.CODES: self.states.codes(chunks),
            contract.STATE: self.states.gather(rows),
            contract.HISTORY: torch.from_numpy(self.states.history(chunks)),
        }
        outputs = (contract.WAVEFORM, contract.STATE_OUT)
        waveform, state_out = call_model(contract.MODEL_NAME, inputs, outputs, self.states.device)
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
            [state] = _call(contract.MODEL_NAME, inputs, [contract.STATE_OUT])
        return state[0].to(self.states.device, copy=True)

    def _split(self, codes: torch.Tensor, max_chunk_frames: int) -> Iterator[tuple[torch.Tensor, int]]:
        """Chunks of codes [1, frames, codebooks], each with its history."""
        for start, stop in contract.split_frames(codes.shape[1], max_chunk_frames):
            yield codes[:, start:stop].contiguous(), min(start, self.states.max_history)


class SharedStatesCodec(BlsCodec):
    """Shared states that code2wav maps, so that no tensor of a call is on a GPU.

    GPU tensors pass through three processes that wait for each other's copies: with one stream that took 3.5 ms in
    addition to the codec's own time (measured on one H200).
    """

    def _decode(self, chunks: Chunks, rows: np.ndarray) -> tuple[np.ndarray, dict[int, RequestError]]:
        places = torch.from_numpy(np.concatenate([rows, self.states.history(chunks)], axis=1))
        inputs = {contract.CODES: self.states.codes(chunks), contract.PLACES: places}
        # The other process cannot wait on this CUDA stream, which may still copy a voice's state.
        self.states.wait()
        samples = self._advance(inputs)
        return samples, overflowed(samples)

    def state_after(self, codes: torch.Tensor, max_chunk_frames: int) -> torch.Tensor:
        before = self.states.zero_row
        for chunk, history in self._split(codes, max_chunk_frames):
            places = torch.tensor([[before, self.states.spare_row, history]], dtype=torch.int32)
            self._advance({contract.CODES: chunk, contract.PLACES: places})
            before = self.states.spare_row
        return self.states.copy_spare()

    def _advance(self, inputs: dict[str, torch.Tensor]) -> np.ndarray:
        """Samples int16 [chunks, samples]."""
        if self.states.line and self.states.line.is_open():
            with CALLS.call(contract.MODEL_NAME):
                return self.states.line.call(inputs[contract.CODES].numpy(), inputs[contract.PLACES].numpy())
        [pcm] = call_model(contract.MODEL_NAME, inputs, [contract.PCM], CPU, {contract.STATES: self.states.address})
        samples: np.ndarray = pcm.numpy()
        return samples


class BlsReferenceEncoder:
    """voices.service.ReferenceEncoder."""

    def __init__(self, config: EngineConfig, codec: BlsCodec) -> None:
        self._speaker_encoder, self._max_chunk_frames = config.speaker_encoder, config.max_chunk_frames
        self._codec = codec
        self._speakers = ThreadPoolExecutor(1, thread_name_prefix="x-vectors")

    def encode(self, audio: np.ndarray, mel: np.ndarray, num_samples: int, in_context: bool) -> Voice:
        if not in_context:
            return Voice(self._x_vector(mel))
        # Two models on the same recording, at the same time.
        x_vector = self._speakers.submit(self._x_vector, mel)
        count = torch.tensor([[num_samples]], dtype=torch.int32)
        inputs = {encoders.AUDIO: torch.from_numpy(audio)[None], encoders.NUM_SAMPLES: count}
        [codes] = _call(encoders.CODEC_ENCODER, inputs, [encoders.CODES])
        state = self._codec.state_after(codes, self._max_chunk_frames)
        return Voice(x_vector.result(), codes[0].numpy().copy(), state=state)

    def adopt(self, voice: Voice) -> Voice:
        if voice.state is None:
            return voice
        states = self._codec.states
        return Voice(voice.x_vector, voice.codes, voice.text, voice.state.to(states.device, states.dtype))

    def _x_vector(self, mel: np.ndarray) -> np.ndarray:
        """float32 [talker hidden]"""
        [vector] = _call(self._speaker_encoder, {encoders.MEL: torch.from_numpy(mel)[None]}, [encoders.X_VECTOR])
        x_vector: np.ndarray = vector[0].numpy().copy()
        if not np.isfinite(x_vector).all():
            raise RequestError(f"{self._speaker_encoder}: returned a vector that is not finite")
        return x_vector


def _call(model: str, inputs: dict[str, torch.Tensor], outputs: Sequence[str]) -> list[torch.Tensor]:
    """Outputs of a model, on the CPU. Raises RequestError."""
    return [tensor.cpu() for tensor in call_model(model, inputs, outputs, CPU)]


def call_model(
    model: str,
    inputs: dict[str, torch.Tensor],
    outputs: Sequence[str],
    device: torch.device,
    parameters: dict[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Outputs of another model, on `device` if Triton supports it. Raises RequestError."""
    kind = pb_utils.TRITONSERVER_MEMORY_GPU if device.type == "cuda" else pb_utils.TRITONSERVER_MEMORY_CPU
    request = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=list(outputs),
        inputs=[pb_utils.Tensor.from_dlpack(name, tensor) for name, tensor in inputs.items()],
        preferred_memory=pb_utils.PreferredMemory(kind, device.index or 0),
        parameters=parameters or {},
    )
    with CALLS.call(model):
        response = request.exec()
    if response.has_error():
        raise _model_error(model, response.error())
    return [from_dlpack(pb_utils.get_output_tensor_by_name(response, name).to_dlpack()) for name in outputs]


def _model_error(model: str, error: Any) -> RequestError:
    if SERVER_STARTS in error.message():
        return ServerStarting(f"{model}: {error.message()}")
    # A server that shuts down refuses calls of its own models; Triton reports some of these as INTERNAL.
    gone = error.code() == pb_utils.TritonError.UNAVAILABLE or any(sign in error.message() for sign in MODEL_IS_GONE)
    return (Unavailable if gone else RequestError)(f"{model}: {error.message()}")
