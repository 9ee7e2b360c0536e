"""The tiny codec's plan in Triton's own TensorRT backend (docs/code2wav.md), with concurrent callers."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress
from torch import Tensor
from tritonclient.utils import InferenceServerException

from export.code2wav import export
from export.forms.form import Form
from export.forms.tensorrt_form import tensorrt_form
from export.modules.codec import CodecStep
from export.tensorrt.process import TENSORRT_PYTHON, TensorRtSettings
from export.verify import Outcome, StepFunction, Verification, failures, worst
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.contract import CODES, HISTORY, MAX_BATCH, MAX_FRAMES, STATE, STATE_OUT, WAVEFORM
from scripts.embedded.installation import LIBRARIES, ServerError, find_library
from tests.e2e.codec import Codec, serve_codec
from tests.e2e.serving import copy_repository, real_backend
from tests.gpu.test_mps import MPS, SHARED, kill_beside_streams
from tests.gpu.test_serving import serving

PYTHON = os.environ.get(TENSORRT_PYTHON)
HERE = importlib.util.find_spec("tensorrt") is not None
pytestmark = pytest.mark.skipif(not PYTHON and not HERE, reason="no TensorRT")

CALLERS = 4
BATCHES = (*range(1, 9), 33, MAX_BATCH)


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
def plans(checkpoint: Checkpoint, form: Form, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the plan."""
    repository = copy_repository(tmp_path_factory.mktemp("plans") / "model_repository", fakes=False)
    with Progress(disable=True) as progress:
        export(checkpoint, repository, form, progress)
    return repository


@pytest.fixture(scope="module")
def codec(backend: Path, plans: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codec]:
    with serve_codec(plans, tmp_path_factory.mktemp("server"), (), [backend]) as codec:
        yield codec


def test_concurrent_calls_of_all_shapes_agree_with_pytorch(codec: Codec, checkpoint: Checkpoint, form: Form) -> None:
    reference = CodecStep.from_checkpoint(checkpoint)

    def outcomes(caller: int) -> list[Outcome]:
        return list(Verification(reference, step_of(codec), BATCHES, seed=caller).run())

    with ThreadPoolExecutor(CALLERS) as callers:
        found = list(callers.map(outcomes, range(CALLERS)))
    print(*map(worst, found), sep="\n")
    assert [failures(each, form.limit) for each in found] == [""] * CALLERS


def step_of(codec: Codec) -> StepFunction:
    dtype = codec.request()[STATE].dtype

    def step(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        codes, state, history = (tensor.cpu().numpy() for tensor in inputs)
        answer = codec.call({CODES: codes, STATE: state.astype(dtype), HISTORY: history})
        return torch.tensor(answer[WAVEFORM]), torch.tensor(answer[STATE_OUT]).float()

    return step


def test_malformed_call_fails_and_the_next_one_succeeds(codec: Codec) -> None:
    expected = codec.call(codec.request())
    for request in (
        codec.request(1, 3),
        codec.request(1, MAX_FRAMES),
        codec.request(MAX_BATCH + 1, 1),
        codec.request(state=np.zeros((1, 5), np.float16)),
        codec.request(state=np.zeros((1, 5), np.float32)),
    ):
        with pytest.raises(InferenceServerException):
            codec.call(request)
        np.testing.assert_array_equal(codec.call(codec.request())[WAVEFORM], expected[WAVEFORM])


@pytest.mark.skipif(not MPS, reason="no MPS")
def test_talker_and_plan_share_the_gpu_and_end_together(
    backend: Path, plans: Path, endless_checkpoint: Path, tmp_path: Path
) -> None:
    with serving(plans, tmp_path, endless_checkpoint, "tensorrt", [backend]) as caller:
        assert caller.speak(max_frames=4).error is None
        assert SHARED in (tmp_path / "server.log").read_text()
        kill_beside_streams(caller, "qwen3_tts")
