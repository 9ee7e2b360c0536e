"""The tiny codec's plan behind Triton's own TensorRT backend (docs/code2wav.md), with many callers at once."""

import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress
from tritonclient.utils import InferenceServerException

from export.code2wav import export
from export.codec import CodecStep
from export.form import Form
from export.plan_process import TENSORRT_PYTHON, TensorRtSettings
from export.tensorrt_form import tensorrt_form
from export.verify import Agreement, Array, Step, Verification
from qwen3_tts_engine.checkpoint import Checkpoint, CodecDecoderConfig
from qwen3_tts_engine.code2wav import CODES, HISTORY, MAX_BATCH, MAX_FRAMES, STATE, STATE_OUT, WAVEFORM, state_size
from scripts.embedded.server import LIBRARIES, ServerError, find_library
from scripts.synthetic_configs import CODEC_DECODER
from tests.e2e.codec import Codec, serve_codec
from tests.e2e.serving import copy_repository, real_backend

PYTHON = os.environ.get(TENSORRT_PYTHON)
HERE = importlib.util.find_spec("tensorrt") is not None
pytestmark = pytest.mark.skipif(not PYTHON and not HERE, reason="no TensorRT")

CALLERS = 4
# (rows, frames): with and without a CUDA graph, exact and padded.
CASES = tuple((rows, frames) for rows in range(1, 9) for frames in (1, 2, 3, 4, 8, 16))
CASES += ((33, 5), (MAX_BATCH, 1), (MAX_BATCH, 4), (MAX_BATCH, MAX_FRAMES))


@pytest.fixture(scope="module")
def backend() -> Path:
    folder = real_backend("tensorrt")
    try:
        for name in LIBRARIES["tensorrt"]:
            find_library(name)
    except ServerError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> Form:
    settings = TensorRtSettings(Path(PYTHON or sys.executable), level=0, cache=tmp_path_factory.mktemp("timings"))
    return tensorrt_form(settings)


@pytest.fixture(scope="module")
def codec(
    backend: Path, checkpoint: Checkpoint, form: Form, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Codec]:
    folder = tmp_path_factory.mktemp("tensorrt_backend")
    repository = copy_repository(folder / "model_repository", fakes=False)
    with Progress(disable=True) as progress:
        export(checkpoint, repository, form, progress)
    graphs_for(checkpoint.speech_tokenizer.decoder_config, repository / "code2wav" / "config.pbtxt")
    with serve_codec(repository, folder, (), [backend]) as codec:
        yield codec


def graphs_for(config: CodecDecoderConfig, path: Path) -> None:
    """Give the CUDA graphs of the released codec the state of this one."""
    released = state_size(CodecDecoderConfig.model_validate(CODEC_DECODER))
    path.write_text(path.read_text().replace(f"dim: [ {released} ]", f"dim: [ {state_size(config)} ]"))


def test_calls_of_all_shapes_at_once_agree_with_pytorch(codec: Codec, checkpoint: Checkpoint, form: Form) -> None:
    reference = CodecStep.from_checkpoint(checkpoint)

    def worst(caller: int) -> Agreement:
        cases = random.Random(caller).sample(CASES, len(CASES))
        return reduce(Agreement.worst, Verification(reference, step_of(codec), tuple(cases)).run())

    with ThreadPoolExecutor(CALLERS) as callers:
        agreements = list(callers.map(worst, range(CALLERS)))
    print(*agreements, sep="\n")
    assert all(agreement.within(form.limit) for agreement in agreements)


def step_of(codec: Codec) -> Step:
    dtype = codec.request()[STATE].dtype

    def step(codes: Array, state: Array, history: Array) -> tuple[Array, Array]:
        answer = codec.call({CODES: codes, STATE: state.astype(dtype), HISTORY: history})
        return answer[WAVEFORM], answer[STATE_OUT].astype(np.float32)

    return step


def test_malformed_call_fails_and_the_next_one_is_served(codec: Codec) -> None:
    expected = codec.call(codec.request())
    for request in (
        codec.request(1, MAX_FRAMES + 1),
        codec.request(MAX_BATCH + 1, 1),
        codec.request(state=np.zeros((1, 5), np.float16)),
        codec.request(state=np.zeros((1, 5), np.float32)),
    ):
        with pytest.raises(InferenceServerException):
            codec.call(request)
        np.testing.assert_array_equal(codec.call(codec.request())[WAVEFORM], expected[WAVEFORM])
