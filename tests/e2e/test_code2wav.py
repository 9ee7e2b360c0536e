"""The codec model called by itself: malformed requests are refused with a reason, and the next one is served."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from qwen3_tts_engine.manifest import CodecManifest
from tests.e2e.serving import copy_repository, serve

ONLY_CODEC = ("--model-control-mode=explicit", "--load-model=code2wav", "--model-config-name=onnxruntime")


class Codec:
    def __init__(self, client: InferenceServerClient, state_size: int) -> None:
        self._client, self.state_size = client, state_size

    def waveform(self, **change: NDArray) -> NDArray:
        tensors = {
            "codes": np.full((1, 2, 16), 7, np.int32),
            "state": np.zeros((1, self.state_size), np.float32),
            "history": np.zeros((1, 1), np.int32),
        } | change
        inputs = [InferInput(name, array.shape, np_to_triton_dtype(array.dtype)) for name, array in tensors.items()]
        for declared, array in zip(inputs, tensors.values(), strict=True):
            declared.set_data_from_numpy(array)
        sound: NDArray = self._client.infer("code2wav", inputs).as_numpy("waveform")
        return sound


@pytest.fixture(scope="module")
def codec(tiny_code2wav: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codec]:
    folder = tmp_path_factory.mktemp("codec")
    repository = copy_repository(folder / "model_repository", fakes=False)
    version = repository / "code2wav" / "1"
    for file in (tiny_code2wav / "code2wav" / "1").iterdir():
        (version / file.name).write_bytes(file.read_bytes())
    with serve(repository, folder, {}, ONLY_CODEC) as server:
        client = InferenceServerClient(f"localhost:{server.ports.grpc}")
        yield Codec(client, CodecManifest.read(version).state_size)
        client.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": np.full((1, 2, 16), 2048, np.int32)}, "codes: values from 2048 to 2048 given, must be 0 to 2047"),
        ({"codes": np.full((1, 2, 16), -1, np.int32)}, "codes: values from -1 to -1 given, must be 0 to 2047"),
        ({"history": np.full((1, 1), 72, np.int32)}, "history: values from 72 to 72 given, must be 0 to 71"),
        ({"state": np.zeros((1, 5), np.float32)}, r"state: float32 \[1, 5\] given, float32 \[-1, \d+\] expected"),
        ({"state": np.zeros((1, 5), np.float16)}, "state"),
        ({"codes": np.zeros((1, 2, 15), np.int32)}, "codes"),
    ],
)
def test_refused_with_a_reason(codec: Codec, change: dict[str, NDArray], message: str) -> None:
    with pytest.raises(InferenceServerException, match=message):
        codec.waveform(**change)
    assert codec.waveform().shape == (1, 3840)
