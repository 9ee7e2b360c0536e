"""Serves code2wav alone, and calls it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient, InferInput, InferResult
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from qwen3_tts_engine.checkpoint.manifest import CodecManifest
from qwen3_tts_engine.codec.contract import CODES, HISTORY, MODEL_NAME, STATE, STATE_OUT, WAVEFORM, input_shapes
from tests.e2e.serving import serve

Tensors = dict[str, NDArray]

ONLY_CODEC = ("--model-control-mode=explicit", f"--load-model={MODEL_NAME}")
STATE_DTYPES = {"FP32": np.float32, "FP16": np.float16}
ANSWER_SECONDS = 120


@dataclass(frozen=True)
class Codec:
    """Calls the model; concurrent calls may share a batch."""

    client: InferenceServerClient
    manifest: CodecManifest

    def request(self, rows: int = 1, frames: int = 2, **change: NDArray) -> Tensors:
        """A request for new streams, all codes 7."""
        dtypes = {CODES: np.int32, STATE: STATE_DTYPES[self.manifest.state_dtype], HISTORY: np.int32}
        shapes = input_shapes(rows, frames, self.manifest.state_size)
        tensors = {name: np.zeros(shape, dtypes[name]) for name, shape in shapes.items()}
        tensors[CODES] += 7
        return tensors | change

    def send(self, request: Tensors, shapes: Mapping[str, Sequence[int]] = MappingProxyType({})) -> Future[Tensors]:
        """`shapes` override the shapes of the arrays. The future raises InferenceServerException."""
        inputs = []
        for name, array in request.items():
            inputs.append(InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array).set_shape(shapes.get(name, array.shape))
        future: Future[Tensors] = Future()

        def answered(result: InferResult | None, error: InferenceServerException | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result({name: result.as_numpy(name) for name in (WAVEFORM, STATE_OUT)})

        self.client.async_infer(MODEL_NAME, inputs, answered)
        return future

    def call(self, request: Tensors) -> Tensors:
        """Raises InferenceServerException."""
        return self.send(request).result(ANSWER_SECONDS)

    def call_concurrently(self, requests: Sequence[Tensors]) -> list[Tensors]:
        """Raises InferenceServerException if a call fails."""
        return [future.result(ANSWER_SECONDS) for future in [self.send(request) for request in requests]]

    def batches(self) -> Counter[int]:
        """Number of executed batches by row count."""
        [statistics] = self.client.get_inference_statistics(MODEL_NAME).model_stats
        return Counter({batch.batch_size: batch.compute_infer.count for batch in statistics.batch_stats})


@contextmanager
def serve_codec(
    repository: Path, folder: Path, options: Sequence[str], real_backends: Sequence[Path] = ()
) -> Iterator[Codec]:
    with serve(repository, folder, {}, (*ONLY_CODEC, *options), real_backends) as server:
        client = InferenceServerClient(f"localhost:{server.ports.grpc}")
        yield Codec(client, CodecManifest.read(repository / MODEL_NAME / "1"))
        client.close()
