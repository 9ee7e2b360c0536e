"""Serves code2wav alone, and calls it."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient, InferInput, InferResult
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from export.modules.codec import CodecStep
from export.verify import IRREGULAR_CHUNKS
from qwen3_tts_engine.codec.contract import (
    CODES,
    MODEL_NAME,
    NO_SAMPLE,
    NUM_ROWS,
    PCM,
    PLACES,
    PUBLIC_ROWS,
    ZERO_ROW,
)
from qwen3_tts_engine.codec.rows import claim_rows
from tests.e2e.serving import serve
from tests.fakes.codec_layers import pcm_of

Tensors = dict[str, NDArray]

ONLY_CODEC = ("--model-control-mode=explicit", f"--load-model={MODEL_NAME}")
ANSWER_SECONDS = 120
MAX_HISTORY = 71
FIRST_PUBLIC = NUM_ROWS - PUBLIC_ROWS
NO_KEY = 0


@dataclass(frozen=True)
class Codec:
    """Calls the model."""

    url: str
    client: InferenceServerClient

    def request(self, rows: int = 1, frames: int = 2, **change: NDArray) -> Tensors:
        """A request for new streams, all codes 7, without a key and in public rows."""
        new = places(ZERO_ROW, FIRST_PUBLIC + np.arange(rows) % PUBLIC_ROWS)
        return {CODES: np.full((rows, frames, 16), 7, np.int32), PLACES: new} | change

    def send(
        self,
        request: Tensors,
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
        parameters: dict[str, str] | None = None,
    ) -> Future[Tensors]:
        """`shapes` override the shapes of the arrays. The future raises InferenceServerException."""
        inputs = []
        for name, array in request.items():
            inputs.append(InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array).set_shape(shapes.get(name, array.shape))
        future: Future[Tensors] = Future()

        def answered(result: InferResult | None, error: InferenceServerException | None) -> None:
            if result is None:
                future.set_exception(error)
            else:
                # A plan's elements hold two samples each.
                future.set_result({PCM: result.as_numpy(PCM).view(np.int16)})

        self.client.async_infer(MODEL_NAME, inputs, answered, parameters=parameters)
        return future

    def call(self, request: Tensors) -> Tensors:
        """Raises InferenceServerException."""
        return self.send(request).result(ANSWER_SECONDS)

    def call_concurrently(self, requests: Sequence[Tensors]) -> list[Tensors]:
        """Raises InferenceServerException if a call fails."""
        return [future.result(ANSWER_SECONDS) for future in [self.send(request) for request in requests]]

    def claim(self, count: int, key: int) -> NDArray:
        """Rows that belong to the key from then on."""

        def claimed(rows: NDArray) -> NDArray:
            request = {CODES: np.zeros((len(rows), 1, 16), np.int32), PLACES: places(rows, rows, 0, key)}
            return ~is_denied(self.call(request)[PCM])

        return claim_rows(count, claimed)


class CodecStreams:
    """Streams whose states are rows of the codec."""

    def __init__(self, codec: Codec, rows: NDArray, key: int = NO_KEY) -> None:
        self._codec, self.rows, self._key = codec, rows, key
        self.history = np.zeros(len(rows), np.int32)

    def request(self, streams: NDArray, codes: NDArray) -> Tensors:
        """The call that decodes the next frames of these streams, codes int32 [streams, frames, 16]."""
        rows, history = self.rows[streams], self.history[streams]
        before = np.where(history == 0, ZERO_ROW, rows)
        self.history[streams] = np.minimum(history + codes.shape[1], MAX_HISTORY)
        return {CODES: codes, PLACES: places(before, rows, history, self._key)}

    def advance(self, streams: NDArray, codes: NDArray) -> NDArray:
        """Their samples, int16 [streams, samples]."""
        return self._codec.call(self.request(streams, codes))[PCM]

    def speak(self, codes: NDArray) -> NDArray:
        """The samples of all streams' codes, decoded in irregular chunks."""
        parts, start = [], 0
        for frames in cycle(IRREGULAR_CHUNKS):
            parts.append(self.advance(np.arange(len(codes)), codes[:, start : start + frames]))
            start += frames
            if start >= codes.shape[1]:
                return np.concatenate(parts, axis=1)
        raise AssertionError


class ReferenceStreams:
    """The same streams, by the FP32 PyTorch step."""

    def __init__(self, step: CodecStep, count: int) -> None:
        self._step = step
        self._states = torch.zeros(count, step.state_size)
        self._history = torch.zeros(count, 1, dtype=torch.int32)

    @torch.inference_mode()
    def advance(self, streams: NDArray, codes: NDArray) -> NDArray:
        each = torch.from_numpy(streams)
        inputs = torch.from_numpy(codes), self._states[each], self._history[each]
        waveform, self._states[each] = self._step(*inputs)
        self._history[each] = (self._history[each] + codes.shape[1]).clamp(max=MAX_HISTORY)
        return pcm_of(waveform)


def places(before: NDArray | int, after: NDArray | int, history: NDArray | int = 0, key: int = NO_KEY) -> NDArray:
    """int32 [rows, 4]"""
    columns = np.broadcast_arrays(before, np.atleast_1d(after), history, key)
    stacked: NDArray = np.stack(columns, axis=1)
    return stacked.astype(np.int32)


def is_denied(pcm: NDArray) -> NDArray:
    """Rows that the caller's key does not open, bool [rows]."""
    denied: NDArray = (pcm[:, :2] == NO_SAMPLE).all(axis=1)
    return denied


@contextmanager
def serve_codec(repository: Path, folder: Path, backends: Sequence[Path] = ()) -> Iterator[Codec]:
    with serve(repository, folder, {}, ONLY_CODEC, backends) as server:
        url = f"localhost:{server.ports.grpc}"
        client = InferenceServerClient(url)
        yield Codec(url, client)
        client.close()
